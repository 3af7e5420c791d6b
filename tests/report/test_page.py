"""The page of recorded runs: complete, self-contained, and true to the data it embeds."""

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from vllm_vpp.cli import app
from vllm_vpp.core.metrics import PARTS
from vllm_vpp.core.timeline import SpanKind
from vllm_vpp.report.inputs import read_inputs
from vllm_vpp.report.page import page_of
from vllm_vpp.report.page_data import page_data

RESULTS = Path(__file__).parents[2] / "results" / "policies.json"


def embedded(html: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, record: Any) -> str:
    folder = tmp_path_factory.mktemp("runs")
    prompts = [40_000, 9_000]
    runs = [record(folder / f"{n} <b>", kind, prompts) for n, kind in (("C", "linear"), ("V", "v"))]
    out = folder / "report.html"
    result = CliRunner().invoke(app, ["report", *map(str, runs), "-o", str(out)])
    assert result.exit_code == 0, result.output
    return out.read_text(encoding="utf-8")


def test_page_needs_nothing_from_outside(page: str) -> None:
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", page)
    assert page.count("plotly.js v") == 1
    assert "@import" not in page


def test_names_cannot_break_the_page(page: str) -> None:
    assert "<b>" not in page.split('<script type="application/json"', maxsplit=1)[0]
    assert "C &lt;b&gt;" in page
    assert embedded(page)["runs"][0]["name"] == "C <b>"


def test_a_name_cannot_end_the_data(tmp_path: Path, record: Any) -> None:
    (run,) = read_inputs([record(tmp_path / "V", "v", [9_000])]).runs
    html = page_of([replace(run, name="</script>x")], command="</script>y")
    assert embedded(html)["runs"][0]["name"] == "</script>x"
    assert embedded(html)["command"] == "</script>y"


def test_hardware_of_a_recording_is_on_the_page(tmp_path: Path, record: Any) -> None:
    folder = record(tmp_path / "V", "v", [9_000])
    (folder / "machine.json").write_text(json.dumps({"processor": "some <chip>"}))
    html = page_of(read_inputs([folder]).runs, command="x")
    assert 'processor</th><td class="words">some &lt;chip&gt;</td>' in html


def test_table_cells_show_the_embedded_numbers(page: str) -> None:
    data = embedded(page)
    rows = re.findall(r'<tr[^>]*><th scope="row">(.*?)</th>(.*?)</tr>', page)
    cells = {
        unescape(head): re.findall(r'<td data-value="([^"]*)">(.*?)</td>', rest)
        for head, rest in rows
        if "data-value" in rest
    }
    for row in data["comparison"]:
        shown = cells[row["label"].strip()]
        assert [float(value) for value, _ in shown] == row["values"]
        if row["unit"] == "s":
            assert [text for _, text in shown] == [f"{value:.3f}" for value in row["values"]]
    for run in data["runs"]:
        for rank in run["metrics"]["ranks"]:
            shown = cells[f"{run['name']}, rank {rank['rank']}"]
            assert [float(v) for v, _ in shown] == [rank[part] for part in (*PARTS, "makespan")]
            assert shown[0][1] == f"{rank['compute']:.3f}"


def test_deltas_of_the_parts_sum_to_that_of_the_makespan(page: str) -> None:
    rows = embedded(page)["comparison"]
    parts = [r["values"][1] - r["values"][0] for r in rows if r["is_part"]]
    (whole,) = (r["values"][1] - r["values"][0] for r in rows if r["label"] == "makespan")
    assert sum(parts) == pytest.approx(whole)
    assert f"is {abs(whole):.3f} s shorter than C &lt;b&gt;" in page


def test_data_has_every_span_and_idle_moment(tmp_path: Path, record: Any) -> None:
    (run,) = read_inputs([record(tmp_path / "V", "v", [40_000])]).runs
    (data,) = page_data([run], "x")["runs"]
    shown = [s for s in run.timeline.spans if s.kind is not SpanKind.WAIT]
    assert len(data["spans"]["start"]) == len(shown)
    assert set(map(len, data["spans"].values())) == {len(shown)}
    idle = [0, 0]
    for rank, start, end in zip(*(data["idle"][k] for k in ("rank", "start", "end")), strict=True):
        idle[rank] += end - start
    assert [ns * 1e-9 for ns in idle] == pytest.approx([r.bubble for r in run.metrics.ranks])
    assert data["chunk_times"]["line"]["slope"] > 0
    assert len(data["chunk_times"]["seconds"]) == 40_000 // 4096


def test_a_results_file_is_shown_with_its_origin_and_every_ttft(tmp_path: Path) -> None:
    result = json.loads(RESULTS.read_text(encoding="utf-8"))
    runs = read_inputs([RESULTS]).runs
    assert [run.name for run in runs] == [kept["arm"] for kept in result["timelines"]]
    for run in runs:
        expected = [t for r in result["runs"] if r["arm"] == run.name for t in r["ttft"]]
        assert list(run.first_tokens) == expected
    html = page_of(runs, command="vllm-vpp report results/policies.json")
    assert result["command"] in html
    assert result["machine"]["processor"] in html
    assert result["machine"]["torch"] in html
    assert str(Path.home()) not in html.split("plotly.js v")[0]
