"""plan, simulate and calibrate from the command line: answers, files, bad input, speed."""

import json
import subprocess
import sys
import time
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from vllm_vpp.cli import app
from vllm_vpp.core.timeline import Timeline
from vllm_vpp.sim.cost_file import read_cost
from vllm_vpp.sim.fitted import NAMES

QWEN = ["--model", "qwen3-coder-30b-a3b", "--hardware", "h20", "--across-nodes"]


def run(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "120"})
    assert result.exit_code == code, result.output + result.stderr
    return result


def plan(*words: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(run("plan", *words, "--json").stdout)
    return data


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A tiny dense model, whose fixed costs drown everything else."""
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {
                "num_hidden_layers": 8,
                "hidden_size": 256,
                "vocab_size": 1000,
                "num_attention_heads": 4,
                "intermediate_size": 512,
            }
        )
    )
    return path


def test_plan_recommends_a_fold_for_a_long_prompt_and_says_why() -> None:
    report = plan(*QWEN, "--ranks", "2", "--prompts", "64K")["prompts"][0]
    assert report["fastest"].startswith(("v", "wave"))
    low, high = report["gain_range"]
    assert 0 < low <= report["gain"] <= high < 0.2
    assert any("drain" in reason for reason in report["reasons"])
    options = {option["name"]: option for option in report["options"]}
    assert {"linear fixed", "v fixed", "v ramp", "2 replicas"} <= set(options)
    for option in options.values():
        assert sum(option["chunks"]) == 65536
        parts = {k: v for k, v in option["seconds"].items() if k != "imbalance"}
        assert sum(parts.values()) == pytest.approx(option["ttft"], rel=0.01)


def test_plan_prefers_no_pipeline_for_throughput_where_the_model_fits() -> None:
    report = plan(*QWEN, "--ranks", "2", "--prompts", "64K")["prompts"][0]
    assert report["highest_throughput"] == "2 replicas"


def test_plan_prefers_tensor_parallelism_within_a_node_where_links_are_fast() -> None:
    words = ["--model", "qwen3-coder-30b-a3b", "--hardware", "h20", "--ranks", "2"]
    report = plan(*words, "--prompts", "64K")["prompts"][0]
    assert report["fastest"] == "tensor parallel 2"
    assert "--tensor-parallel-size 2" in report["serve"]
    assert "--pipeline-parallel-size" not in report["serve"]


def test_plan_keeps_the_plain_pipeline_or_none_where_a_fold_does_not_pay(config: Path) -> None:
    words = ["--model", str(config), "--hardware", "h200", "--ranks", "2", "--prompts", "1K"]
    report = plan(*words, "--dispatch", "5000")["prompts"][0]
    assert report["fastest"] in {"2 replicas", "linear fixed", "tensor parallel 2"}


def test_plan_tells_vllms_even_split_apart() -> None:
    words = ["--model", "glm-5.2", "--hardware", "h200", "--ranks", "4", "--tensor-parallel", "8"]
    report = plan(*words, "--prompts", "128K")["prompts"][0]
    assert any("need another's indices" in reason for reason in report["reasons"])
    allowed = {0, 1, 2, *range(6, 78, 4)}
    for option in report["options"]:
        starts = {sum(option["layers"][:k]) for k in range(len(option["layers"]))}
        assert starts <= allowed


def test_serve_line_names_the_layout_and_carries_the_law() -> None:
    report = plan(*QWEN, "--ranks", "2", "--prompts", "64K")["prompts"][0]
    line = report["serve"]
    assert line.startswith("vllm serve qwen3-coder-30b-a3b")
    assert "--pipeline-parallel-size 2" in line
    vpp = json.loads(line.split("--additional-config ")[1].strip("'"))["vpp"]
    assert sum(vpp["split"]) == 48
    if "chunking" in vpp:
        assert set(vpp["cost"]) == {"c0", "b", "a"}


def test_plan_prints_a_table_its_reasons_and_its_sources(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    text = run("plan", *QWEN, "--prompts", "32K", "--html", str(page)).stdout
    for fragment in ("linear fixed", "vllm serve", "Where the numbers come from", "assumed"):
        assert fragment in text
    html = page.read_text(encoding="utf-8")
    assert "Where the numbers come from" in html
    assert "vllm serve" in html
    assert 'src="http' not in html


def test_plan_runs_a_workload(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 500 * i, "input_length": 4000 + 997 * i, "output_length": 5}
        for i in range(12)
    ]
    trace.write_text("\n".join(map(json.dumps, lines)))
    found = plan(*QWEN, "--prompts", "16K", "--workload", str(trace))["workload"]
    assert {r["requests"] for r in found} == {12}
    assert all(r["p50_ttft"] <= r["p99_ttft"] for r in found)


def test_plan_says_what_a_bound_on_the_time_between_tokens_costs() -> None:
    words = [*QWEN, "--ranks", "2", "--prompts", "64K,16K"]
    alone = plan(*words)
    tight, loose, hopeless = (plan(*words, "--itl-target-ms", ms) for ms in ("700", "1e6", "0.01"))
    fastest = alone["prompts"][0]["fastest"]
    assert sum(tight["itl"]["chunks"]) == 65536, "the longest prompt"
    (option,) = (o for o in alone["prompts"][0]["options"] if o["name"] == fastest)
    assert len(tight["itl"]["chunks"]) > len(option["chunks"])
    assert tight["itl"]["slower"] > 0.01
    assert tight["itl"]["reached"] <= 0.7
    assert loose["itl"]["slower"] == pytest.approx(0, abs=1e-9)
    assert loose["itl"]["chunks"] == option["chunks"]
    assert hopeless["itl"]["ttft"] is None
    assert '"itl_target_ms": 700' in tight["prompts"][0]["serve"]
    assert "itl" not in alone


def test_plan_prints_one_line_about_the_bound() -> None:
    for ms, words in (("700", ["chunks of", "TTFT"]), ("0.01", ["out of reach"])):
        text = run("plan", *QWEN, "--prompts", "16K,32K", "--itl-target-ms", ms).stdout
        found = [line for line in text.splitlines() if line.startswith("One prompt of 32,768 t")]
        assert len(found) == 1
        assert all(word in found[0] for word in words), found


def test_a_million_tokens_on_eight_ranks_take_at_most_ten_seconds() -> None:
    began = time.process_time()
    plan(
        *("--model", "deepseek-v3.1", "--hardware", "h200", "--ranks", "8"),
        *("--tensor-parallel", "8", "--prompts", "1M"),
    )
    assert time.process_time() - began < 10


def test_answers_are_deterministic() -> None:
    words = [*QWEN, "--ranks", "4", "--prompts", "32K"]
    assert plan(*words) == plan(*words)


def test_simulate_prints_metrics_and_a_timeline_and_writes_files(tmp_path: Path) -> None:
    files = {name: tmp_path / f"x.{name}" for name in ("html", "trace", "timeline")}
    words = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    text = run("simulate", *QWEN, "--prompts", "32K,8K", "--output", "3", *words).stdout
    assert "rank 0 0▒" in text
    assert "of the limit W/P" in text
    assert json.loads(files["trace"].read_text())["traceEvents"]
    assert Timeline.from_json(files["timeline"].read_text()).source == "simulated"
    assert "plotly" in files["html"].read_text(encoding="utf-8")


@pytest.mark.parametrize("layout", [("linear", None), ("v", None), ("wave", "3")])
@pytest.mark.parametrize("order", ["greedy", "async", "vanilla"])
def test_simulate_takes_any_layout_order_and_policy(
    layout: tuple[str, str | None], order: str
) -> None:
    kind, sweeps = layout
    words = ["--layout", kind, *(["--sweeps", sweeps] if sweeps else [])]
    policy = json.dumps({"policy": "ramp", "peak": 4096, "down": 3})
    text = run(
        "simulate", *QWEN, *words, "--order", order, "--chunking", policy, "--blocking", "--json"
    ).stdout
    data = json.loads(text)
    assert data["order"] == order
    assert data["metrics"]["distance_to_limit"] >= 1
    assert data["requests"][0]["ttft"] > 0


def test_calibrate_on_simulated_runs_recovers_a_cost_that_plans(tmp_path: Path) -> None:
    recorded = tmp_path / "run.json"
    run("simulate", *QWEN, "--chunking", "2K", "--timeline", str(recorded))
    data = json.loads(recorded.read_text())
    data["notes"] |= {"layers": "(12, 12, 12, 12)", "block_size": "128"}
    recorded.write_text(json.dumps(data))
    out = tmp_path / "cost.json"
    text = run("calibrate", str(recorded), "--out", str(out)).stdout
    assert "R^2 0.99" in text or "R^2 1.0" in text
    assert "grow linearly" in text
    cost = read_cost(out)
    assert cost.cost.split == (12, 12, 12, 12)
    assert cost.overheads.gap == pytest.approx(500e-6, rel=0.05)
    report = plan("--cost", str(out), "--prompts", "32K")["prompts"][0]
    assert report["gain_range"] is not None
    assert _off_block(report, 128) == {0}, "as the engine will cut: on blocks of the KV cache"
    other = plan("--cost", str(out), "--prompts", "32K", "--block", "96")["prompts"][0]
    assert _off_block(other, 96) == {0}
    analytic = plan(*QWEN, "--prompts", "32K")["prompts"][0]
    found = {o["name"]: o["ttft"] for o in report["options"]}
    wanted = {o["name"]: o["ttft"] for o in analytic["options"]}
    assert found["linear fixed"] == pytest.approx(wanted["linear fixed"], rel=0.05)


def _off_block(report: dict[str, Any], block: int) -> set[int]:
    """Where the ramps of a report end chunks, in tokens after the start of a block."""
    ends = [
        accumulate(option["chunks"][:-1])
        for option in report["options"]
        if option["chunking"]["policy"] == "ramp"
    ]
    return {end % block for each in ends for end in each}


def test_calibrate_times_layers_here(config: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "cost.json"
    words = ["--model", str(config), "--threads", "1", "--dtype", "float32", "--out", str(out)]
    run("calibrate", *words, "--chunks", "64,128", "--prefixes", "0,256")
    cost = read_cost(out)
    assert cost.notes["dtype"] == "float32"
    assert sum(cost.cost.split) == 8
    plan("--cost", str(out), "--prompts", "1K")


NAMED = {
    "an unknown model": ["plan", "--model", "gpt-17", "--hardware", "h20"],
    "an unknown device": ["plan", "--model", "glm-5.2", "--hardware", "abacus"],
    "no model": ["plan", "--hardware", "h20"],
    "model and cost": ["plan", *QWEN, "--cost", "x.json"],
    "a missing cost file": ["plan", "--cost", "nowhere.json"],
    "zero prompts": ["plan", *QWEN, "--prompts", "0"],
    "negative prompts": ["plan", *QWEN, "--prompts", "-5"],
    "no number": ["plan", *QWEN, "--prompts", "many"],
    "zero ranks": ["plan", *QWEN, "--ranks", "0"],
    "zero devices": ["plan", *QWEN, "--tensor-parallel", "0"],
    "zero tokens of a block": ["plan", *QWEN, "--block", "0"],
    "bad depth": ["plan", *QWEN, "--depth", "0"],
    "bad weight bytes": ["plan", *QWEN, "--weight-bytes", "-1"],
    "bad dispatch": ["plan", *QWEN, "--dispatch", "-1"],
    "no time between tokens": ["plan", *QWEN, "--itl-target-ms", "0"],
    "endless time between tokens": ["plan", *QWEN, "--itl-target-ms", "inf"],
    "a model that does not fit": ["plan", "--model", "deepseek-v3.1", "--hardware", "h20"],
    "no trace": ["plan", *QWEN, "--workload", "nowhere.jsonl"],
    "no layout": ["simulate", *QWEN, "--layout", "w"],
    "sweeps of a v": ["simulate", *QWEN, "--sweeps", "3"],
    "no order": ["simulate", *QWEN, "--order", "lazy"],
    "too many stages": ["simulate", *QWEN, "--ranks", "40"],
    "bad layers": ["simulate", *QWEN, "--layers", "1,2,3"],
    "layers that do not sum": ["simulate", *QWEN, "--layers", "1,2,3,4"],
    "bad policy": ["simulate", *QWEN, "--chunking", '{"policy": "magic"}'],
    "broken policy": ["simulate", *QWEN, "--chunking", '{"policy"'],
    "no folder": ["simulate", *QWEN, "--html", "nowhere/x.html"],
    "nothing to calibrate from": ["calibrate"],
    "no run": ["calibrate", "nowhere.json"],
    "no dtype": ["calibrate", "--model", "glm-5.2", "--dtype", "int3"],
}


@pytest.mark.parametrize("words", NAMED.values(), ids=NAMED.keys())
def test_bad_input_is_one_line_and_exit_code_two(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*words, code=2)
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("vllm-vpp: ")
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == [], "nothing half-written"


BROKEN = {
    "not json": "{",
    "not an object": "[1]",
    "no length": '{"timestamp": 1}',
    "negative": '{"input_length": -4}',
    "zero": '{"input_length": 0}',
    "text": '{"input_length": "long"}',
    "fraction": '{"input_length": 1.5}',
}


@pytest.mark.parametrize("line", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_trace_names_its_line(line: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(f'{{"input_length": 5}}\n\n{line}\n')
    result = run("plan", *QWEN, "--workload", str(trace), code=2)
    assert "trace.jsonl:3: " in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"kind": "magic"}, "must be fitted or table"),
        ({"coefficients": {}}, "calibrate wrote"),
        ({"overheads": {"gap": -1}}, "gap=-1"),
        ({"notes": {"block_size": "none"}}, "block_size='none'"),
    ],
)
def test_a_damaged_cost_file_is_one_clear_line(
    change: dict[str, Any], fragment: str, tmp_path: Path
) -> None:
    good = {
        "kind": "fitted",
        "coefficients": {name: [1e-6, None] for name in NAMES},
        "split": [4, 4],
        "r_squared": 1.0,
        "spans": 9,
        "left_out": 0,
        "notes": {},
    }
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(good | change))
    assert fragment in run("plan", "--cost", str(path), code=2).stderr


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    heavy = {"numpy", "scipy", "plotly", "torch", "vllm", "rich.table"}
    code = f"import sys; from vllm_vpp.cli import app; print(*({heavy!r} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == []
