r"""Where the time of each rank went, from profiler traces of one run.

Owns the sums. W = [first start, last end] of device work over all ranks (or of each rank, where
the clocks of the files have nothing in common); per rank C = union of kernels that compute, X =
union of communication, M = union of copies by the device's copy engines.
compute = |C|; exposed communication = |X \ C|; exposed copies = |M \ (C u X)|; idle =
|W \ (C u X u M)|; the four sum to |W|. overlap ratio = |X n C| / |X|, absent when X is empty.
With one rank, compute, idle and overlap are those of HolisticTraceAnalysis (compute_time,
idle_time, comp_comm_overlap).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from vllm_vpp.core.intervals import intersect, length, merge, subtract
from vllm_vpp.profiles.operators import OperatorGroup
from vllm_vpp.profiles.torch_trace import RankTrace

__all__ = ["PARTS", "GroupTime", "Profile", "ProfiledRank", "profile"]

PARTS = ("compute", "exposed", "copies", "idle")
"""Fields of `ProfiledRank` that sum to the makespan."""

_S = 1e-9


class GroupTime(NamedTuple):
    """Sum of the durations of a group, side by side or not, and how many there were."""

    seconds: float
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledRank:
    """One rank, in seconds; compute + exposed + copies + idle = makespan."""

    rank: int
    file: str
    on_device: bool
    compute: float
    exposed: float
    copies: float
    idle: float
    transfer: float
    overlapped: float
    makespan: float
    groups: dict[OperatorGroup, GroupTime]

    @property
    def overlap_ratio(self) -> float | None:
        """Share of communication during which the rank computes; None without any."""
        return self.overlapped / self.transfer if self.transfer else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """All ranks of one run. `one_window`: whether they share it."""

    name: str
    one_window: bool
    ranks: tuple[ProfiledRank, ...]

    def mean(self, part: str) -> float:
        """Mean over ranks of one of their fields."""
        return float(sum(getattr(r, part) for r in self.ranks) / len(self.ranks))

    def mean_of(self, group: OperatorGroup) -> float:
        """Mean over ranks of the seconds of a group."""
        return sum(r.groups[group].seconds for r in self.ranks) / len(self.ranks)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        ranks = [
            asdict(r)
            | {
                "overlap_ratio": r.overlap_ratio,
                "groups": {g.value: time._asdict() for g, time in r.groups.items()},
            }
            for r in self.ranks
        ]
        return {"name": self.name, "one_window": self.one_window, "ranks": ranks}


def profile(name: str, traces: Sequence[RankTrace]) -> Profile:
    """The breakdown of one run's traces, one per rank."""
    windows = [_window(trace) for trace in traces]
    start, end = min(s for s, _ in windows), max(e for _, e in windows)
    shared = max(s for s, _ in windows) < min(e for _, e in windows)
    return Profile(
        name=name,
        one_window=shared,
        ranks=tuple(
            _rank(trace.rank if trace.rank is not None else position, trace, window)
            for position, (trace, own) in enumerate(zip(traces, windows, strict=True))
            for window in [(start, end) if shared else own]
        ),
    )


def _window(trace: RankTrace) -> tuple[int, int]:
    return min(p.start_ns for p in trace.pieces), max(p.end_ns for p in trace.pieces)


def _rank(rank: int, trace: RankTrace, window: tuple[int, int]) -> ProfiledRank:
    talking = [p for p in trace.pieces if p.group is OperatorGroup.COMMUNICATION]
    working = [p for p in trace.pieces if p.group is not OperatorGroup.COMMUNICATION]
    transfer = merge((p.start_ns, p.end_ns) for p in talking)
    compute = merge((p.start_ns, p.end_ns) for p in working if not p.is_copy)
    copies = merge((p.start_ns, p.end_ns) for p in working if p.is_copy)
    either = merge(compute + transfer)
    sums = dict.fromkeys(OperatorGroup, 0)
    for piece in trace.pieces:
        sums[piece.group] += piece.end_ns - piece.start_ns
    return ProfiledRank(
        rank=rank,
        file=trace.name,
        on_device=trace.on_device,
        compute=length(compute) * _S,
        exposed=length(subtract(transfer, compute)) * _S,
        copies=length(subtract(copies, either)) * _S,
        idle=length(subtract([window], merge(either + copies))) * _S,
        transfer=length(transfer) * _S,
        overlapped=length(intersect(transfer, compute)) * _S,
        makespan=(window[1] - window[0]) * _S,
        groups={group: GroupTime(ns * _S, trace.calls[group]) for group, ns in sums.items()},
    )
