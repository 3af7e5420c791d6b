"""The part of docs/validation.md that compares predictions with results/reality.json.

Every third run, per model, is fitted; the others are predicted.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from vllm_vpp.core.chunking import make_policy
from vllm_vpp.core.cost import QuadraticCost, StageCost
from vllm_vpp.core.schedule import Schedule
from vllm_vpp.core.timeline import SpanKind, Timeline
from vllm_vpp.core.trace import Control, Run
from vllm_vpp.sim.fitted import FittedCost
from vllm_vpp.sim.reality import Prediction, cost_of, predict
from vllm_vpp.sim.replay import differences, measured_schedule, replay
from vllm_vpp.sim.simulate import Setup

RESULTS = Path(__file__).resolve().parent.parent / "results" / "reality.json"
FITTED = 3


class Recorded(NamedTuple):
    """One run of the suite."""

    model: str
    arm: str
    prompt: str
    run: Run


class Row(NamedTuple):
    """A prediction with the run that it is about."""

    of: Recorded
    found: Prediction
    adjusted: float  # error once the drift of the machine between the runs is taken off


def recorded(data: dict[str, Any]) -> list[Recorded]:
    """Runs in the order in which they were measured."""
    found = []
    for kept in data["timelines"]:
        timeline = Timeline.from_json(kept["timeline"])
        run = Run(
            timeline=timeline,
            submitted_ns={},
            result_ns={},
            control=Control(),
            layers=tuple(json.loads(timeline.notes["layers"])),
            law=QuadraticCost(**json.loads(timeline.notes["law"].replace("'", '"'))),
        )
        model = data["arms"][kept["arm"]]["model"]
        found.append(Recorded(model, kept["arm"], kept["case"], run))
    return found


def rows(runs: Sequence[Recorded]) -> tuple[list[Row], int, float]:
    """Predictions of the runs not fitted; how many were fitted; the smallest R^2."""
    found: list[Row] = []
    fitted, worst_r2 = 0, 1.0
    for model in sorted({r.model for r in runs}):
        mine = [r for r in runs if r.model == model]
        chosen = [r for i, r in enumerate(mine) if (i // FITTED + i) % FITTED == 0]
        cost, overheads = cost_of([r.run for r in chosen])
        fitted += len(chosen)
        worst_r2 = min(worst_r2, cost.r_squared)
        for one in mine:
            if one in chosen:
                continue
            (prediction,) = predict(one.run, cost, overheads)
            adjusted = (1 + prediction.error) * speed(one.run, cost) - 1
            found.append(Row(one, prediction, adjusted))
    return found, fitted, worst_r2


def speed(run: Run, cost: FittedCost) -> float:
    """Seconds of compute in the run, over those that the cost model says."""
    spans = [s for s in run.timeline.spans if s.kind is SpanKind.COMPUTE]
    computed = {s.micro_batch for s in spans}
    own = cost.with_split(run.layers)
    said = sum(sum(own.times(b)) for b in run.timeline.micro_batches if b.index in computed)
    return sum(s.end_ns - s.start_ns for s in spans) * 1e-9 / said


def same_order(runs: Sequence[Recorded]) -> int:
    """Runs in which every rank ran what the dispatcher decides for the same micro-batches."""
    return sum(not differences(decided(r.run), measured_schedule(r.run.timeline)) for r in runs)


def decided(run: Run) -> Schedule:
    """What the dispatcher decides for the run's micro-batches with the law that the engine used."""
    notes = run.timeline.notes
    setup = Setup(
        layout=run.timeline.layout,
        cost=StageCost.by_layers(run.law, run.layers),
        policy=make_policy({"policy": "fixed", "chunk": 1}, law=None, ranks=1),  # never asked
        order=notes["order"],
        depth=int(notes["in_flight"]),
    )
    placed = replay(run.timeline, setup).placed
    return Schedule.from_order(run.timeline.layout, (p.action for p in placed))


def section() -> str:
    """Markdown; empty where nothing has been recorded."""
    if not RESULTS.exists():
        return ""
    data = json.loads(RESULTS.read_text(encoding="utf-8"))
    runs = recorded(data)
    found, fitted, r_squared = rows(runs)
    errors = [abs(row.found.error) for row in found]
    adjusted = [abs(row.adjusted) for row in found]
    points = [abs(r.found.predicted_bubble - r.found.measured_bubble) for r in found]
    head = "run | prompt | chunks | measured, s | predicted, s | error | at own speed | bubble"
    lines = [
        f"| {head} | predicted |",
        "|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {r.of.arm} | {r.of.prompt} | {r.found.chunks} | {r.found.measured:.2f} "
            f"| {r.found.predicted:.2f} | {r.found.error:+.1%} | {r.adjusted:+.1%} "
            f"| {r.found.measured_bubble:.1%} | {r.found.predicted_bubble:.1%} |"
            for r in found
        ),
    ]
    machine = ", ".join(f"{k} {v}" for k, v in data["machine"].items())
    return f"""
## Real runs

{len(runs)} prompts on a real engine (`{data["command"]}`): layouts, chunk sizes, lengths, models.
{fitted} of them are fitted, per model (smallest R^2 {r_squared:.4f}), the others predicted.
Seconds run from the first start of compute to its end.

- Error of the predicted time: mean {mean(errors):.1%}, worst {max(errors):.1%}.
- The machine's speed drifts between runs. Scaled to the compute speed of the predicted run itself,
  which leaves what the simulator adds (order, waiting, transfers): mean {mean(adjusted):.1%}, worst
  {max(adjusted):.1%}.
- Bubble ratio: {100 * mean(points):.2f} points off on average, {100 * max(points):.2f} at worst.
- Order of actions: on every rank as decided in virtual time in {same_order(runs)} of the
  {len(runs)} runs.

{chr(10).join(lines)}

{machine}.
"""
