"""Predictions of recorded runs, next to what was measured.

Owns picking the prompts of a run that had the pipeline to themselves, replaying their micro-batches
with a cost model, and the comparison. Fit the cost on other runs than those it is asked about.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from vllm_vpp.core.batch import MicroBatch
from vllm_vpp.core.chunking import make_policy
from vllm_vpp.core.metrics import measure
from vllm_vpp.core.timeline import SpanKind, Timeline
from vllm_vpp.core.trace import Run
from vllm_vpp.sim.fitted import FittedCost, Measured, fit
from vllm_vpp.sim.overheads import Overheads, measure_overheads
from vllm_vpp.sim.replay import replay
from vllm_vpp.sim.simulate import Setup

__all__ = ["Prediction", "cost_of", "predict"]


class Prediction(NamedTuple):
    """One prompt: seconds and bubble ratios, measured and predicted.

    Seconds run from the first start of compute to the last end of its chunks.
    """

    request: str
    chunks: int
    measured: float
    predicted: float
    measured_bubble: float
    predicted_bubble: float

    @property
    def error(self) -> float:
        """Predicted over measured seconds, minus 1."""
        return self.predicted / self.measured - 1


def cost_of(runs: list[Run], *, gamma: bool = False) -> tuple[FittedCost, Overheads]:
    """Cost and overheads fitted to recorded runs together."""
    measured = [Measured(run.timeline, run.layers) for run in runs]
    return fit(measured, gamma=gamma), measure_overheads([m.timeline for m in measured])


def predict(run: Run, cost: FittedCost, overheads: Overheads) -> list[Prediction]:
    """Every prompt of the run that had the pipeline to itself, replayed."""
    notes = run.timeline.notes
    setup = Setup(
        layout=run.timeline.layout,
        cost=cost.with_split(run.layers),
        policy=make_policy({"policy": "fixed", "chunk": 1}, law=None, ranks=1),  # never asked
        order=notes.get("order", "greedy"),
        depth=int(notes["in_flight"]) if "in_flight" in notes else None,
        links=overheads.links,
        gap=overheads.gap,
    )
    found = []
    for request, part in _alone(run.timeline):
        measured, predicted = measure(part), measure(replay(part, setup).timeline())
        found.append(
            Prediction(
                request,
                len(part.micro_batches),
                measured.makespan,
                predicted.makespan,
                measured.bubble_ratio,
                predicted.bubble_ratio,
            )
        )
    return found


def _alone(timeline: Timeline) -> Iterator[tuple[str, Timeline]]:
    """Prompts whose micro-batches hold nothing else, with their spans, numbered from 0."""
    prompts: dict[str, list[MicroBatch]] = {}
    for batch in timeline.micro_batches:
        for chunk in batch.chunks:
            prompts.setdefault(chunk.request, []).append(batch)
    for request, batches in prompts.items():
        last = max((i for i, b in enumerate(batches) if b.tokens > 1), default=-1)
        chosen = batches[: last + 1]
        if not chosen or any(len(batch.chunks) != 1 for batch in chosen):
            continue
        number = {batch.index: new for new, batch in enumerate(chosen)}
        spans = tuple(
            span._replace(micro_batch=number[span.micro_batch])
            for span in timeline.spans
            if span.micro_batch in number
        )
        if not any(span.kind is SpanKind.COMPUTE for span in spans):
            continue
        renumbered = tuple(batch._replace(index=number[batch.index]) for batch in chosen)
        yield request, replace(timeline, spans=spans, micro_batches=renumbered)
