"""Runs the micro-batches of a measured timeline again, in virtual time.

Owns the comparison of a prediction with what an engine did: the same micro-batches through the same
dispatcher, and the order of actions of each rank side by side.
"""

from collections.abc import Sequence

from vllm_vpp.core import trace
from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.core.cost import StageCost
from vllm_vpp.core.dispatch import Dispatcher
from vllm_vpp.core.order import Order
from vllm_vpp.core.schedule import Action, Schedule
from vllm_vpp.core.timeline import SpanKind, Timeline
from vllm_vpp.sim.simulate import Run, Setup, run_source

__all__ = ["decided_order", "differences", "measured_schedule", "replay"]


class _Recorded:
    """Micro-batches in the order recorded, each as soon as the tokens it decodes can be there."""

    def __init__(self, batches: Sequence[MicroBatch]) -> None:
        self._batches = batches
        self._next = 0
        self._done: set[tuple[str, int]] = set()
        self._computed: set[tuple[str, int]] = {
            (c.request, c.prefix + c.tokens) for b in batches for c in b.chunks
        }

    def next(self, now_ns: int) -> tuple[Chunk, ...] | None:
        if self._next == len(self._batches):
            return None
        chunks = self._batches[self._next].chunks
        for chunk in chunks:
            before = (chunk.request, chunk.prefix)
            if chunk.tokens == 1 and before in self._computed and before not in self._done:
                return None
        self._next += 1
        return chunks

    def next_arrival(self) -> int | None:
        return None

    def submitted(self, micro_batch: MicroBatch) -> None:
        pass

    def finish(self, micro_batch: MicroBatch, end_ns: int) -> None:
        self._done.update((c.request, c.prefix + c.tokens) for c in micro_batch.chunks)


def replay(timeline: Timeline, setup: Setup) -> Run:
    """Simulate the timeline's micro-batches; `setup.policy` is not asked."""
    placed, batches = run_source(setup, _Recorded(timeline.micro_batches), setup.dispatcher())
    return Run(setup=setup, placed=tuple(placed), micro_batches=tuple(batches), requests=())


def decided_order(run: trace.Run, order: str) -> Schedule:
    """What the dispatcher decides when it is fed as the recorded engine fed it.

    Submissions and results in the order recorded, the engine's own law: the ranks must have run
    exactly this (`differences`). Empty micro-batches, which no rank computes, are left out.
    """
    cost = StageCost.by_layers(run.law, run.layers)
    dispatcher = Dispatcher(Order.of(order, run.timeline.layout), cost)
    batches = {batch.index: batch for batch in run.timeline.micro_batches}
    events = [(at, True, index) for index, at in run.submitted_ns.items()]
    events += [(at, False, index) for index, at in run.result_ns.items()]
    actions: list[Action] = []
    for _, submits, index in sorted(events):
        if submits:
            dispatcher.submit(batches[index], after=run.after.get(index))
        else:
            actions += [placed.action for placed in dispatcher.settle(index)]
            dispatcher.retire(index)
    actions += [placed.action for placed in dispatcher.settle(closed=True)]
    shown = (action for action in actions if batches[action.micro_batch].chunks)
    return Schedule.from_order(run.timeline.layout, shown)


def measured_schedule(timeline: Timeline) -> Schedule:
    """Order of actions of each rank, as they started."""
    compute = sorted(
        (s for s in timeline.spans if s.kind is SpanKind.COMPUTE), key=lambda s: s.start_ns
    )
    return Schedule.from_order(timeline.layout, (Action(s.stage, s.micro_batch) for s in compute))


def differences(mine: Schedule, other: Schedule) -> list[str]:
    """One line for each rank whose orders differ: where, and what each runs there."""
    found = []
    for rank, (ours, theirs) in enumerate(zip(mine.actions, other.actions, strict=True)):
        if ours == theirs:
            continue
        pairs = zip(ours, theirs, strict=False)
        place = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
        here = ours[place] if place < len(ours) else "nothing"
        there = theirs[place] if place < len(theirs) else "nothing"
        found.append(f"rank {rank}, action {place}: {here} against {there}")
    return found
