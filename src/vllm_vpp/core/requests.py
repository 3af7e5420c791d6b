"""When requests are in the system, and what lies between one prompt and the next.

Owns the life of a request as a timeline shows it, or as the engine saw it where that was recorded.
Leaves idle time to `occupancy` and all sums to `metrics`.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from vllm_vpp.core.intervals import Intervals, merge
from vllm_vpp.core.timeline import SpanKind, Timeline

__all__ = ["Prefill", "Seen", "handovers", "prefills", "presence"]


class Seen(NamedTuple):
    """What the engine saw of each micro-batch, by number: when submitted, when its result came."""

    submitted_ns: Mapping[int, int]
    result_ns: Mapping[int, int]


class Prefill(NamedTuple):
    """The prefill of one request: its micro-batches, and its time as the engine saw it.

    Without an engine, from the first start of compute to the last end.
    """

    request: str
    micro_batches: tuple[int, ...]
    start_ns: int
    end_ns: int


def presence(timeline: Timeline, seen: Seen | None = None) -> Intervals:
    """Times at which some request is in the system.

    A request is there from the submission of its first micro-batch (without `seen`: its first
    compute) to the result of its last (its last compute).
    """
    names = {batch.index: [c.request for c in batch.chunks] for batch in timeline.micro_batches}
    lives: dict[str, tuple[int, int]] = {}
    for index, (start, end) in _times(timeline, seen).items():
        for name in names.get(index) or [f"micro-batch {index}"]:
            first, last = lives.get(name, (start, end))
            lives[name] = (min(first, start), max(last, end))
    return merge(lives.values())


def prefills(timeline: Timeline, seen: Seen | None = None) -> list[Prefill]:
    """Prefill of each request, by first micro-batch.

    A chunk of one token that is not a request's first is taken for decode.
    """
    times = _times(timeline, seen)
    batches: dict[str, list[int]] = {}
    for batch in timeline.micro_batches:
        for chunk in batch.chunks:
            if batch.index in times and (chunk.tokens > 1 or chunk.request not in batches):
                batches.setdefault(chunk.request, []).append(batch.index)
    return [
        Prefill(name, tuple(found), times[found[0]][0], times[found[-1]][1])
        for name, found in batches.items()
    ]


def handovers(timeline: Timeline, seen: Seen | None = None) -> Intervals:
    """Times between prompts that follow each other: the drain of one and the fill of the next.

    Drain: from the end of stage 0 on the last chunk to the end of the last stage on it. Fill: from
    the start of the next prompt to its first compute on the last rank reached, as far as it lies
    after the start of that drain.
    """
    compute = _compute(timeline)
    found: list[tuple[int, int]] = []
    for before, after in pairwise(prefills(timeline, seen)):
        last, first = compute[before.micro_batches[-1]], compute[after.micro_batches[0]]
        if not {0, timeline.layout.stages - 1} <= last.keys():
            continue  # cut off by the window that the timeline was taken from
        left = last[0][1]
        starts: dict[int, int] = {}
        for stage, (start, _) in first.items():
            rank = timeline.layout.owner(stage)
            starts[rank] = min(start, starts.get(rank, start))
        found.append((left, last[timeline.layout.stages - 1][1]))
        found.append((max(left, after.start_ns), max(starts.values())))
    return merge(found)


def _compute(timeline: Timeline) -> dict[int, dict[int, tuple[int, int]]]:
    """Start and end of compute, by micro-batch and stage."""
    found: dict[int, dict[int, tuple[int, int]]] = {}
    for _, kind, stage, index, start_ns, end_ns in timeline.spans:
        if kind is SpanKind.COMPUTE:
            found.setdefault(index, {})[stage] = (start_ns, end_ns)
    return found


def _times(timeline: Timeline, seen: Seen | None) -> dict[int, tuple[int, int]]:
    """From submission to result of each micro-batch that was computed."""
    times = {
        index: (min(s for s, _ in stages.values()), max(e for _, e in stages.values()))
        for index, stages in _compute(timeline).items()
    }
    if seen is None:
        return times
    return {
        index: (
            min(start, seen.submitted_ns.get(index, start)),
            max(end, seen.result_ns.get(index, end)),
        )
        for index, (start, end) in times.items()
    }
