"""Recorded runs: the engine's order is the dispatcher's, and predictions next to measurements."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vllm_vpp.cli import app
from vllm_vpp.core.chunking import make_policy
from vllm_vpp.core.cost import QuadraticCost, StageCost
from vllm_vpp.core.layout import Layout
from vllm_vpp.core.order import OrderName
from vllm_vpp.core.timeline import SpanKind
from vllm_vpp.core.trace import read_run
from vllm_vpp.sim import Links, Request, Run, Setup, one_after_another, simulate
from vllm_vpp.sim.reality import cost_of, predict
from vllm_vpp.sim.replay import decided_order, differences, measured_schedule

LAW = QuadraticCost(c0=0.01, b=1e-5, a=1e-9)


def layers_of(layout: Layout) -> tuple[int, ...]:
    return (24 // layout.stages,) * layout.stages


def engine_run(
    layout: Layout, *, order: str = "greedy", chunk: int = 1024, latency: float = 0.0
) -> Run:
    setup = Setup(
        layout=layout,
        cost=StageCost.by_layers(LAW, layers_of(layout)),
        policy=make_policy({"policy": "fixed", "chunk": chunk}, law=None, ranks=layout.ranks),
        order=order,
        links=Links(latency=latency),
    )
    return simulate(one_after_another([9000] * 2, output=2), setup)


def record(run: Run, folder: Path, *, order: str = "greedy") -> Path:
    """The files that the plugin's recorder would have written."""
    layout = run.setup.layout
    folder.mkdir()
    header = {
        "ranks": layout.ranks,
        "sweeps": layout.sweeps,
        "order": order,
        "in_flight": layout.depth(),
        "layers": list(layers_of(layout)),
        "law": {"c0": LAW.c0, "b": LAW.b, "a": LAW.a},
    }
    ends = {
        p.action.micro_batch: p.end_ns for p in run.placed if p.action.stage == layout.stages - 1
    }
    starts = {p.action.micro_batch: p.start_ns for p in run.placed if p.action.stage == 0}
    events: list[tuple[int, int, list[object]]] = []
    at = 0
    for batch in run.micro_batches:  # submitted as soon as it could be
        if batch.index >= layout.depth():
            at = max(at, ends[batch.index - layout.depth()])
        chunk = batch.chunks[0]
        if chunk.prefix + chunk.tokens > 9000 or (chunk.prefix == 0 and batch.index):
            at = max(at, ends[batch.index - 1])
        assert at <= starts[batch.index]
        events.append((at, 1, ["b", batch.index, [list(c) for c in batch.chunks], at]))
        events.append((ends[batch.index], 0, ["d", batch.index, ends[batch.index]]))
    lines = [header, *(event for _, _, event in sorted(events, key=lambda e: e[:2]))]
    (folder / "engine.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    for rank in range(layout.ranks):
        records: list[object] = [{"rank": rank}]
        records += [["c", *span[2:]] for span in run.timeline().of(rank, SpanKind.COMPUTE)]
        (folder / f"rank{rank}.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n")
    return folder


@pytest.mark.parametrize("order", list(OrderName))
@pytest.mark.parametrize("sweeps", [1, 2, 3])
def test_a_recorded_engine_ran_what_the_dispatcher_decides(
    sweeps: int, order: OrderName, tmp_path: Path
) -> None:
    run = engine_run(Layout(2, sweeps), order=order)
    recorded = read_run(record(run, tmp_path / "run", order=order))
    assert differences(decided_order(recorded, order), measured_schedule(recorded.timeline)) == []


def test_a_micro_batch_that_needs_the_outcome_of_another_is_decided_and_seen_so(
    tmp_path: Path,
) -> None:
    """Submitted at once, the second starts after the end of the first: a rank waits meanwhile."""
    law = {"c0": 0.0, "b": 1e-9, "a": 0.0}
    engine: list[object] = [{"ranks": 2, "sweeps": 2, "layers": [1, 1, 1, 1], "law": law}]
    engine += [["b", 0, [["r", 0, 400]], 1], ["b", 1, [["r", 400, 1]], 2, 0]]
    engine += [["d", 0, 405], ["d", 1, 900]]
    ranks: list[list[object]] = [[{"rank": 0}], [{"rank": 1}]]
    for index, start in ((0, 3), (1, 410)):
        for stage, rank in enumerate((0, 1, 1, 0)):
            at = start + 100 * stage
            ranks[rank].append(["c", stage, index, at, at + 100])
    folder = tmp_path / "run"
    folder.mkdir()
    for name, lines in (("engine", engine), ("rank0", ranks[0]), ("rank1", ranks[1])):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    recorded = read_run(folder)
    assert recorded.after == {1: 0}
    assert recorded.seen.submitted_ns == {0: 1, 1: 405}
    decided = decided_order(recorded, "async")
    assert differences(decided, measured_schedule(recorded.timeline)) == []


def test_a_rank_that_swapped_two_actions_is_caught(tmp_path: Path) -> None:
    folder = record(engine_run(Layout(2, 2)), tmp_path / "run")
    lines = (folder / "rank0.jsonl").read_text().splitlines()
    first, second = (json.loads(line) for line in lines[4:6])
    first[1:3], second[1:3] = second[1:3], first[1:3]
    lines[4:6] = [json.dumps(first), json.dumps(second)]
    (folder / "rank0.jsonl").write_text("\n".join(lines) + "\n")
    recorded = read_run(folder)
    found = differences(decided_order(recorded, "greedy"), measured_schedule(recorded.timeline))
    assert len(found) == 1
    assert found[0].startswith("rank 0, action 3")


def test_a_cost_fitted_on_one_layout_predicts_the_prompts_of_another(tmp_path: Path) -> None:
    linear = read_run(record(engine_run(Layout(2, 1), latency=1e-4), tmp_path / "a"))
    waves = read_run(record(engine_run(Layout(2, 3), chunk=1536), tmp_path / "b"))
    v = read_run(record(engine_run(Layout(2, 2), chunk=512), tmp_path / "c"))
    cost, overheads = cost_of([linear, waves])
    found = predict(v, cost, overheads)
    assert len(found) == 2
    for prediction in found:
        assert prediction.chunks == 18
        assert abs(prediction.error) < 0.02
        assert prediction.predicted_bubble == pytest.approx(prediction.measured_bubble, abs=0.01)


def test_prompts_that_share_a_micro_batch_are_left_out(tmp_path: Path) -> None:
    layout = Layout(2, 1)
    setup = engine_run(layout).setup
    both = simulate([Request(name=n, prompt=1500) for n in ("x", "y")], setup)
    recorded = read_run(record(engine_run(layout), tmp_path / "run"))
    cost, overheads = cost_of([recorded])
    shared = replace(recorded, timeline=replace(both.timeline(), notes=recorded.timeline.notes))
    assert predict(shared, cost, overheads) == []


def test_calibrate_shows_predictions_next_to_measurements(tmp_path: Path) -> None:
    one = record(engine_run(Layout(2, 1)), tmp_path / "one")
    two = record(engine_run(Layout(2, 2)), tmp_path / "two")
    words = ["calibrate", str(one), "--check", str(two), "--out", str(tmp_path / "cost.json")]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    assert "mean absolute error" in result.output
    assert "v x2" in result.output
