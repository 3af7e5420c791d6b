"""Reads the Chrome traces that torch.profiler writes, one file per rank, parsed already.

Owns the meaning of their events. Where the file holds events of a device (categories kernel,
gpu_memcpy, gpu_memset), these alone count: they are when the device worked. A trace of a CPU has
operators only; there each instant of a thread belongs to the outermost operator whose group is
known, so that what attention does inside is attention.
Format: "Trace Event Format", Google, 2016, with torch.profiler's categories.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from vllm_vpp.errors import InputError
from vllm_vpp.profiles.operators import OperatorGroup, group_of

__all__ = ["Piece", "RankTrace", "in_order", "says_rank", "trace_of"]

_KERNELS = {"kernel"}
_MEMORY = {"gpu_memcpy", "gpu_memset"}
_OPERATORS = {"cpu_op", "operator"}
_group = cache(group_of)


class Piece(NamedTuple):
    """Time spent in one group; `is_copy`: by a copy engine of the device, beside its kernels."""

    group: OperatorGroup
    is_copy: bool
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """One file. `calls`: kernels or outermost operators, by group. `rank`: as the file says."""

    name: str
    rank: int | None
    on_device: bool
    pieces: tuple[Piece, ...]
    calls: Counter[OperatorGroup]


class _Event(NamedTuple):
    lane: tuple[Any, Any]
    start_ns: int
    end_ns: int
    name: str
    category: str


def in_order(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """By rank; where one does not say its rank, as given, numbered in that order.

    Raises InputError where two are of the same rank.
    """
    known = [t.rank for t in traces if t.rank is not None]
    if len(known) < len(traces):
        return [replace(t, rank=None) for t in traces]
    for rank, count in Counter(known).items():
        if count > 1:
            names = ", ".join(t.name for t in traces if t.rank == rank)
            raise InputError(f"{names}: all of rank {rank}; give one file for each rank of one run")
    return sorted(traces, key=lambda t: t.rank or 0)


def says_rank(data: Any) -> bool:
    """Whether parsed JSON is a trace that names the rank it is of."""
    return isinstance(data, dict) and "traceEvents" in data and _rank_in(data) is not None


def _rank_in(data: dict[str, Any]) -> int | None:
    info = data.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    return rank if isinstance(rank, int) else None


def trace_of(name: str, data: Any) -> RankTrace:
    """The trace in parsed JSON. Raises InputError if nothing in it was timed."""
    events = data.get("traceEvents") if isinstance(data, dict) else None
    if not isinstance(events, list):
        raise InputError(f"{name}: no traceEvents in it; give a trace of torch.profiler")
    base_ns = int(data.get("baseTimeNanoseconds") or 0)
    timed = list(_timed(events, base_ns))
    device = [e for e in timed if e.category in _KERNELS | _MEMORY]
    calls: Counter[OperatorGroup] = Counter()
    if device:
        pieces = [
            Piece(_group(e.name), e.category in _MEMORY, e.start_ns, e.end_ns) for e in device
        ]
        calls.update(piece.group for piece in pieces)
    else:
        pieces = list(_outermost([e for e in timed if e.category in _OPERATORS], calls))
    if not pieces:
        raise InputError(
            f"{name}: no kernels and no operators in it; profile with ProfilerActivity.CUDA or CPU"
        )
    return RankTrace(
        name=name,
        rank=_rank_in(data),
        on_device=bool(device),
        pieces=tuple(pieces),
        calls=calls,
    )


def _timed(events: list[Any], base_ns: int) -> Iterator[_Event]:
    for event in events:
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        start, lasts = event.get("ts"), event.get("dur")
        if isinstance(start, int | float) and isinstance(lasts, int | float):
            start_ns = base_ns + round(start * 1000)
            yield _Event(
                (event.get("pid"), event.get("tid")),
                start_ns,
                start_ns + round(lasts * 1000),
                str(event.get("name")),
                str(event.get("cat")).lower(),
            )


def _outermost(events: list[_Event], calls: Counter[OperatorGroup]) -> Iterator[Piece]:
    """Disjoint pieces per thread; counts the operators that gave a piece its group."""
    lanes: dict[tuple[Any, Any], list[_Event]] = defaultdict(list)
    for event in events:
        lanes[event.lane].append(event)
    for mine in lanes.values():
        mine.sort(key=lambda e: (e.start_ns, -e.end_ns))
        yield from _lane(mine, calls)


class _Open:
    """An operator that has not ended: until where its time is accounted for."""

    def __init__(self, group: OperatorGroup, start_ns: int, end_ns: int) -> None:
        self.group, self.done_ns, self.end_ns = group, start_ns, end_ns

    def until(self, at_ns: int) -> Iterator[Piece]:
        """Account for the time up to `at_ns`."""
        if self.done_ns < at_ns:
            yield Piece(self.group, False, self.done_ns, at_ns)
        self.done_ns = at_ns


def _lane(events: list[_Event], calls: Counter[OperatorGroup]) -> Iterator[Piece]:
    stack: list[_Open] = []

    def close(before_ns: int | None) -> Iterator[Piece]:
        while stack and (before_ns is None or stack[-1].end_ns <= before_ns):
            ended = stack.pop()
            yield from ended.until(ended.end_ns)
            if stack:
                stack[-1].done_ns = ended.end_ns

    for event in events:
        yield from close(event.start_ns)
        group, end_ns = _group(event.name), event.end_ns
        if stack:
            yield from stack[-1].until(event.start_ns)
            end_ns = min(end_ns, stack[-1].end_ns)
        if stack and stack[-1].group is not OperatorGroup.OTHER:
            group = stack[-1].group
        elif group is not OperatorGroup.OTHER or not stack:
            calls[group] += 1
        stack.append(_Open(group, event.start_ns, end_ns))
    yield from close(None)
