"""The page in a headless Chromium: it renders, zooms, answers pointer and keys, tells the truth."""

import base64
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.core.layout import Layout
from vllm_vpp.core.metrics import PARTS
from vllm_vpp.core.timeline import Span, SpanKind, Timeline
from vllm_vpp.report.inputs import read_inputs
from vllm_vpp.report.page import page_of
from vllm_vpp.report.page_data import page_data
from vllm_vpp.report.runs import SPANS, ShownRun

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

LISTEN = """<script>
const errors = [];
addEventListener("error", (event) => errors.push(String(event.message)));
addEventListener("unhandledrejection", (event) => errors.push(String(event.reason)));
for (const level of ["error", "warn"]) {
  console[level] = (...words) => errors.push(words.join(" "));
}
</script>"""

ANSWER = """<script>
addEventListener("load", async () => {
  const out = {};
  try { await (async () => { %s })(); } catch (error) { errors.push(error.stack); }
  out.errors = errors;
  const pre = document.createElement("pre");
  pre.id = "result";
  pre.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(out))));
  document.body.append(pre);
});
</script>"""


TIME = "--virtual-time-budget=8000"  # lets promises and timers run before the page is read


def browse(html: str, script: str, folder: Path, *flags: str) -> dict[str, Any]:
    """What `script` put into `out` after the page had loaded."""
    path = folder / "page.html"
    text = html.replace("<head>", "<head>" + LISTEN, 1)
    head, end = text.rsplit("</body>", 1)
    path.write_text(head + ANSWER % script + "</body>" + end, encoding="utf-8")
    assert CHROMIUM is not None
    command = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        *(f"--user-data-dir={folder / 'profile'}", "--window-size=1200,1000", *flags),
        *("--dump-dom", path.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    found = re.search(r'<pre id="result">([^<]*)</pre>', done.stdout)
    assert found is not None, done.stderr[-2000:]
    data: dict[str, Any] = json.loads(base64.b64decode(found[1]))
    return data


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, record: Any) -> tuple[ShownRun, ...]:
    folder = tmp_path_factory.mktemp("runs")
    layouts = (("CPP", "linear"), ("VPP", "v"))
    paths = [record(folder / name, kind, [40_000, 9_000]) for name, kind in layouts]
    return read_inputs(paths).runs


SEEN = """
  const at = (id) => document.getElementById(id);
  const every = (selector) => [...document.querySelectorAll(selector)];
  const byName = (id) => Object.fromEntries(at(id).data.map((t) => [t.name, t]));
  out.parts = byName("parts");
  out.chunkTimes = byName("chunk-times");
  out.firstTokens = byName("first-tokens");
  out.boxes = [0, 1].map((i) => at(`timeline-${i}`).data.map((t) => [t.name, t.x]));
  out.tables = every("td[data-value]").map((td) => [td.dataset.value, td.textContent]);
  out.paper = document.getElementById("parts").layout.paper_bgcolor;
  out.hollow = every(".chart").filter((c) => !c.querySelector(".main-svg")).length;
"""


def test_it_renders_without_a_complaint_what_the_data_says(
    runs: tuple[ShownRun, ...], tmp_path: Path
) -> None:
    data = json.loads(json.dumps(page_data(runs, "x")))["runs"]
    seen = browse(page_of(runs, command="x"), SEEN, tmp_path, TIME)
    assert seen["errors"] == []
    assert seen["hollow"] == 0
    ranks = [rank for run in data for rank in run["metrics"]["ranks"]]
    bars = list(seen["parts"].values())
    assert len(bars) == len(PARTS)
    for part, bar in zip(PARTS, bars, strict=True):
        assert bar["x"] == [rank[part] for rank in ranks]
    for run in data:
        assert seen["chunkTimes"][run["name"]]["y"] == run["chunk_times"]["seconds"]
        assert seen["firstTokens"][run["name"]]["x"] == run["first_token_seconds"]
        band = seen["chunkTimes"][f"{run['name']}, band"]["y"]
        line = run["chunk_times"]["line"]
        assert band == [*line["high"], *reversed(line["low"])]
    for run, boxes in zip(data, seen["boxes"], strict=True):
        starts = sorted(x[i] for name, x in boxes if "sweep" in name for i in range(0, len(x), 6))
        compute = [
            start * 1e-9
            for start, kind in zip(run["spans"]["start"], run["spans"]["kind"], strict=True)
            if kind == 0
        ]
        assert starts == pytest.approx(sorted(compute)), "one box for each action"
    for value, text in seen["tables"]:
        number = float(text.rstrip("%").replace(",", "")) / (100 if text.endswith("%") else 1)
        assert number == pytest.approx(float(value), abs=0.000501)


ZOOM = """
  const [first, second] = [0, 1].map((i) => document.getElementById(`timeline-${i}`));
  const whole = [...first.layout.xaxis.range];
  await Plotly.relayout(first, { "xaxis.range": [whole[1] * 0.4, whole[1] * 0.5] });
  out.ranges = [first, second].map((d) => [...d.layout.xaxis.range]);
  const sweeps = first.data.filter((t) => t.name.includes("sweep"));
  out.fewer = sweeps.flatMap((t) => t.x).filter((v) => v !== null);
  out.whole = whole;
  document.querySelector('button[data-zoom="all"]').click();
  out.back = [...second.layout.xaxis.range];
"""


def test_zoom_moves_all_timelines_and_draws_what_is_in_view(
    runs: tuple[ShownRun, ...], tmp_path: Path
) -> None:
    seen = browse(page_of(runs, command="x"), ZOOM, tmp_path, TIME)
    assert seen["errors"] == []
    low, high = seen["whole"][1] * 0.4, seen["whole"][1] * 0.5
    for shown in seen["ranges"]:
        assert shown == pytest.approx([low, high])
    compute = [s for s in runs[0].timeline.spans if s.kind is SpanKind.COMPUTE]
    origin = runs[0].timeline.start_ns
    within = [
        s
        for s in compute
        if (s.start_ns - origin) * 1e-9 < high and (s.end_ns - origin) * 1e-9 >= low
    ]
    assert len(seen["fewer"]) == 5 * len(within) < 5 * len(compute)
    assert seen["back"] == pytest.approx(seen["whole"])


POINT = """
  const div = document.getElementById("timeline-1"), run = page.runs[1];
  const index = run.spans.kind.findIndex((k, i) => k === 0 && run.spans.stage[i] === 2);
  const middle = (run.spans.start[index] + run.spans.end[index]) / 2 * 1e-9;
  const { xaxis, yaxis } = div._fullLayout, box = div.getBoundingClientRect();
  const x = box.left + xaxis._offset + xaxis.d2p(middle);
  const y = box.top + yaxis._offset + yaxis.d2p(run.spans.rank[index]);
  div.dispatchEvent(new MouseEvent("mousemove", { clientX: x, clientY: y, bubbles: true }));
  const tip = div.querySelector(".tip");
  out.tip = tip.hidden ? null : tip.textContent;
  out.span = Object.fromEntries(Object.entries(run.spans).map(([k, column]) => [k, column[index]]));
  div.dispatchEvent(new MouseEvent("mouseleave", {}));
  out.hidden = tip.hidden;
  const chunks = document.getElementById("chunk-times");
  const curve = chunks.data.findIndex((t) => t.name === "VPP");
  Plotly.Fx.hover(chunks, [{ curveNumber: curve, pointNumber: 3 }]);
  out.hover = [...chunks.querySelectorAll(".hoverlayer text")].map((t) => t.textContent).join(" ");
  const press = (key) => div.dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true }));
  const said = () => document.getElementById("timeline-1-detail").textContent;
  out.focusable = div.tabIndex;
  press("ArrowRight"); out.first = said();
  press("ArrowRight"); out.second = said();
  press("ArrowDown"); out.below = said();
  press("+"); out.zoomed = [...div.layout.xaxis.range];
  press("0"); out.all = [...div.layout.xaxis.range];
"""


def test_pointer_and_keys_tell_about_a_span(runs: tuple[ShownRun, ...], tmp_path: Path) -> None:
    seen = browse(page_of(runs, command="x"), POINT, tmp_path, TIME)
    assert seen["errors"] == []
    span = seen["span"]
    tip = seen["tip"]
    assert f"rank {span['rank']}: compute C{span['batch']}, stage 2" in tip
    assert "tokens after" in tip
    times = re.search(r"from ([\d.]+) (m?)s to ([\d.]+) (m?)s", tip)
    assert times is not None, tip
    for value, milli, name in ((times[1], times[2], "start"), (times[3], times[4], "end")):
        shown = float(value) * (1e-3 if milli else 1)
        assert shown == pytest.approx(span[name] * 1e-9, abs=6e-4)
    assert seen["hidden"]
    assert "chunk 3" in seen["hover"]
    assert seen["focusable"] == 0
    assert seen["first"].startswith("rank 0: compute C0, stage 0")
    assert seen["second"].startswith("rank 0: compute C1, stage 0")
    assert seen["below"].startswith("rank 1: compute C")
    assert seen["zoomed"][1] - seen["zoomed"][0] == pytest.approx(
        (seen["all"][1] - seen["all"][0]) / 2
    )


def test_dark_readers_get_a_dark_page(runs: tuple[ShownRun, ...], tmp_path: Path) -> None:
    html = page_of(runs, command="x")
    light = browse(html, SEEN, tmp_path, TIME)
    dark = browse(html, SEEN, tmp_path, TIME, "--blink-settings=preferredColorScheme=0")
    assert light["paper"] == "#ffffff"
    assert dark["paper"] == "#14171a"
    assert dark["errors"] == []


def many(actions: int) -> ShownRun:
    """`actions` compute spans on four ranks, each with a transfer."""
    spans = []
    for index in range(actions // 4):
        for rank in range(4):
            start = 1_000_000 * (index + rank) + 137 * (index % 7)
            spans.append(Span(rank, SpanKind.COMPUTE, rank, index, start, start + 950_000))
            if rank:
                spans.append(Span(rank, SpanKind.RECV, rank, index, start - 300_000, start))
                spans.append(Span(rank - 1, SpanKind.SEND, rank, index, start - 300_000, start))
    timeline = Timeline(
        layout=Layout(4, 1),
        spans=tuple(sorted(spans, key=lambda s: s.start_ns)),
        micro_batches=tuple(MicroBatch(i, (Chunk(f"r{i}", 0, 64),)) for i in range(actions // 4)),
        source="simulated",
    )
    return ShownRun(name="many", timeline=timeline, ttft=(), measured=SPANS)


SPEED = """
  const div = document.getElementById("timeline-0"), times = [], drawn = [];
  const longest = div.layout.xaxis.range[1];
  for (const share of [0.9, 0.3, 0.1, 0.03, 0.01, 1]) {
    const began = performance.now();
    zoomAll([0, longest * share]);
    times.push(performance.now() - began);
    drawn.push(timelines[0].drawn);
  }
  out.times = times;
  out.drawn = drawn;
"""


def test_twenty_thousand_spans_stay_smooth(tmp_path: Path) -> None:
    run = many(20_000)
    assert sum(s.kind is SpanKind.COMPUTE for s in run.timeline.spans) == 20_000
    seen = browse(page_of([run], command="x"), SPEED, tmp_path)
    assert seen["errors"] == []
    print("milliseconds to zoom", [round(t) for t in seen["times"]], "blocks", seen["drawn"])
    assert max(seen["drawn"]) < 8000
    assert sorted(seen["times"])[len(seen["times"]) // 2] < 700


PRINTED = """
  const div = document.getElementById("parts");
  dispatchEvent(new Event("beforeprint"));
  out.printed = [div.layout.paper_bgcolor, div.layout.width];
  dispatchEvent(new Event("afterprint"));
  out.after = [div.layout.paper_bgcolor, div.layout.width ?? null];
"""


def test_paper_is_white_and_as_wide_as_a_page(runs: tuple[ShownRun, ...], tmp_path: Path) -> None:
    dark = "--blink-settings=preferredColorScheme=0"
    seen = browse(page_of(runs, command="x"), PRINTED, tmp_path, dark)
    assert seen["errors"] == []
    assert seen["printed"] == ["#ffffff", 690]
    assert seen["after"][0] == "#14171a"
