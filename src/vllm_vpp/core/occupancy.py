r"""What each rank is occupied with at every instant, and why it is idle where it is.

Owns the partition of a rank's time; `metrics` adds it up, a report colours it. Definitions
(docs/metrics.md): W = [first compute start, last compute end] over all ranks; C, X = unions of a
rank's compute and transfers within W. A rank is idle on W \ (C u X), for the first reason that
applies: starved, fill, drain, stall, host.
"""

from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum

from vllm_vpp.core.intervals import Intervals, intersect, merge, subtract
from vllm_vpp.core.requests import Seen, presence
from vllm_vpp.core.timeline import Span, SpanKind, Timeline

__all__ = ["Idle", "Occupancy", "occupancy"]


class Idle(StrEnum):
    """Why a rank neither computes nor transfers.

    STARVED: no request is in the system. FILL: before the rank's first compute. DRAIN: after its
    last. STALL: another rank is at work, and the input of this rank's next action is not there
    yet. HOST: otherwise; the input is there, or no rank does anything (launch-blocked).
    """

    STARVED = "starved"
    FILL = "fill"
    DRAIN = "drain"
    STALL = "stall"
    HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """One rank's time; compute, exposed and all of idle are disjoint and make up the window."""

    rank: int
    compute: Intervals
    transfer: Intervals
    exposed: Intervals
    idle: dict[Idle, Intervals]


def occupancy(timeline: Timeline, seen: Seen | None = None) -> tuple[Occupancy, ...]:
    """Occupancy of every rank. Raises InputError when nothing was computed.

    `seen`: the engine's view; without it a request is present from its first to its last compute,
    and stage 0's input is taken to be late only while a receive is waiting.
    """
    window = [(timeline.start_ns, timeline.end_ns)]
    spans: list[list[Span]] = [[] for _ in range(timeline.layout.ranks)]
    for span in timeline.spans:
        spans[span.rank].append(span)
    compute = [_union(mine, window, SpanKind.COMPUTE) for mine in spans]
    transfer = [_union(mine, window, SpanKind.SEND, SpanKind.RECV) for mine in spans]
    at_work = merge(part for parts in (*compute, *transfer) for part in parts)
    absent = subtract(window, presence(timeline, seen))
    return tuple(
        Occupancy(
            rank=rank,
            compute=compute[rank],
            transfer=transfer[rank],
            exposed=subtract(transfer[rank], compute[rank]),
            idle=_idle(
                subtract(window, merge(compute[rank] + transfer[rank])),
                (absent, intersect(_waiting(mine, compute[rank], seen), at_work)),
                _inner(compute[rank], window[0]),
            ),
        )
        for rank, mine in enumerate(spans)
    )


def _union(spans: list[Span], window: Intervals, *kinds: SpanKind) -> Intervals:
    return intersect(merge((s.start_ns, s.end_ns) for s in spans if s.kind in kinds), window)


def _inner(compute: Intervals, window: tuple[int, int]) -> tuple[int, int]:
    """First start and last end of compute; the end of the window twice if there is none."""
    return (compute[0][0], compute[-1][1]) if compute else (window[1], window[1])


def _idle(
    idle: Intervals, reasons: tuple[Intervals, Intervals], inner: tuple[int, int]
) -> dict[Idle, Intervals]:
    absent, waiting = reasons
    starved = intersect(idle, absent)
    rest = subtract(idle, starved)
    between = intersect(rest, [inner]) if inner[0] < inner[1] else []
    stall = intersect(between, waiting)
    outer = subtract(rest, between)
    fill = [part for part in outer if part[1] <= inner[0]]
    return {
        Idle.STARVED: starved,
        Idle.FILL: fill,
        Idle.DRAIN: subtract(outer, fill),
        Idle.STALL: stall,
        Idle.HOST: subtract(between, stall),
    }


def _waiting(spans: list[Span], compute: Intervals, seen: Seen | None) -> Intervals:
    """Times before a rank's actions at which the input of the next one is not there.

    An input is there when its receive has ended, or the stage before has on the same rank, or, for
    stage 0, when the engine has submitted the micro-batch. Where none of these is known, a gap is
    waiting as far as a receive is.
    """
    arrived: dict[tuple[int, int], int] = {}
    following: dict[int, list[tuple[int, int]]] = defaultdict(list)
    waits: list[tuple[int, int]] = []
    for _, kind, stage, index, start_ns, end_ns in spans:
        if kind is SpanKind.COMPUTE:
            following[start_ns].append((stage, index))
            arrived.setdefault((stage + 1, index), end_ns)
        elif kind is SpanKind.RECV:
            arrived[stage, index] = end_ns
        elif kind is SpanKind.WAIT:
            waits.append((start_ns, end_ns))
    receiving = merge(waits)
    found: list[tuple[int, int]] = []
    free = compute[0][1] if compute else 0
    for start, end in compute[1:]:
        ready = [_ready(action, arrived, seen) for action in following[start]]
        known = [at for at in ready if at is not None]
        if known:
            found.append((free, min(max(known), start)))
        else:
            found += intersect([(free, start)], receiving)
        free = end
    return merge(found)


def _ready(
    action: tuple[int, int], arrived: dict[tuple[int, int], int], seen: Seen | None
) -> int | None:
    stage, index = action
    if stage == 0:
        return seen.submitted_ns.get(index) if seen is not None else None
    return arrived.get(action)
