r"""Every metric of a timeline, simulated or measured, by one set of definitions.

Definitions (docs/metrics.md prints the same):
W = [first compute start, last compute end] over all ranks; per rank C = union of compute, X =
union of transfers, both within W.
compute = |C|; exposed communication = |X \ C|; bubble = |W \ (C u X)|; the three sum to |W|.
The bubble splits into fill (before the rank's first compute), drain (after its last), stall (a
receive is waiting) and host (nothing outstanding).
overlap ratio = |X n C| / |X|, absent when X is empty. bubble ratio = bubble / |W|.
distance to the limit = |W| / (W_all / P) with W_all the compute of all ranks (theory 1).
"""

from dataclasses import asdict, dataclass
from typing import Any

from vllm_vpp.core.intervals import Intervals, intersect, length, merge, subtract
from vllm_vpp.core.timeline import SpanKind, Timeline

__all__ = ["Metrics", "RankMetrics", "measure"]

_S = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMetrics:
    """One rank, in seconds.

    compute + exposed + bubble = makespan, fill + drain + stall + host = bubble.
    """

    rank: int
    compute: float
    exposed: float
    fill: float
    drain: float
    stall: float
    host: float
    transfer: float
    overlapped: float
    makespan: float

    @property
    def bubble(self) -> float:
        """Seconds in which the rank neither computes nor transfers."""
        return self.fill + self.drain + self.stall + self.host

    @property
    def bubble_ratio(self) -> float:
        """Bubble over makespan."""
        return self.bubble / self.makespan

    @property
    def busy(self) -> float:
        """Compute over makespan."""
        return self.compute / self.makespan

    @property
    def overlap_ratio(self) -> float | None:
        """Share of transfer time during which the rank computes; None without transfers."""
        return self.overlapped / self.transfer if self.transfer else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """A whole timeline, in seconds."""

    makespan: float
    ranks: tuple[RankMetrics, ...]

    @property
    def bubble_ratio(self) -> float:
        """Mean over ranks."""
        return sum(r.bubble_ratio for r in self.ranks) / len(self.ranks)

    @property
    def idle_ratio(self) -> float:
        """Share of rank time without compute: bubble and exposed communication, mean over ranks."""
        return 1 - sum(r.busy for r in self.ranks) / len(self.ranks)

    @property
    def exposed(self) -> float:
        """Exposed communication, seconds, mean over ranks."""
        return sum(r.exposed for r in self.ranks) / len(self.ranks)

    @property
    def overlap_ratio(self) -> float | None:
        """Overlapped over all transfer time of all ranks; None without transfers."""
        transfer = sum(r.transfer for r in self.ranks)
        return sum(r.overlapped for r in self.ranks) / transfer if transfer else None

    @property
    def limit(self) -> float:
        """W/P: seconds that no schedule of the same compute can beat."""
        return sum(r.compute for r in self.ranks) / len(self.ranks)

    @property
    def distance_to_limit(self) -> float:
        """Makespan over W/P; 1 is perfect."""
        return self.makespan / self.limit

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, derived values included."""
        ranks = [
            asdict(r)
            | {
                "bubble": r.bubble,
                "bubble_ratio": r.bubble_ratio,
                "busy": r.busy,
                "overlap_ratio": r.overlap_ratio,
            }
            for r in self.ranks
        ]
        return {
            "makespan": self.makespan,
            "bubble_ratio": self.bubble_ratio,
            "idle_ratio": self.idle_ratio,
            "exposed": self.exposed,
            "overlap_ratio": self.overlap_ratio,
            "limit": self.limit,
            "distance_to_limit": self.distance_to_limit,
            "ranks": ranks,
        }


def measure(timeline: Timeline) -> Metrics:
    """Metrics of a timeline. Raises InputError when nothing was computed."""
    window = [(timeline.start_ns, timeline.end_ns)]
    spans = _by_rank(timeline)
    ranks = tuple(_rank(rank, spans[rank], window) for rank in range(timeline.layout.ranks))
    return Metrics(makespan=length(window) * _S, ranks=ranks)


def _by_rank(timeline: Timeline) -> list[dict[SpanKind, Intervals]]:
    """Start and end of the spans of each rank, by kind."""
    found: list[dict[SpanKind, Intervals]] = [
        {kind: [] for kind in SpanKind} for _ in range(timeline.layout.ranks)
    ]
    for rank, kind, _, _, start_ns, end_ns in timeline.spans:
        found[rank][kind].append((start_ns, end_ns))
    return found


def _rank(rank: int, spans: dict[SpanKind, Intervals], window: Intervals) -> RankMetrics:
    def union(*kinds: SpanKind) -> Intervals:
        return intersect(merge(span for kind in kinds for span in spans[kind]), window)

    compute = union(SpanKind.COMPUTE)
    transfer = union(SpanKind.SEND, SpanKind.RECV)
    bubble = subtract(window, merge(compute + transfer))
    (start, end), last = window[0], window[0][0]
    first = compute[0][0] if compute else end
    if compute:
        last = compute[-1][1]
    inner = intersect(bubble, [(first, last)] if first < last else [])
    stall = intersect(inner, union(SpanKind.WAIT))
    return RankMetrics(
        rank=rank,
        compute=length(compute) * _S,
        exposed=length(subtract(transfer, compute)) * _S,
        fill=length(intersect(bubble, [(start, first)])) * _S,
        drain=length(intersect(bubble, [(max(last, first), end)])) * _S,
        stall=length(stall) * _S,
        host=length(subtract(inner, stall)) * _S,
        transfer=length(transfer) * _S,
        overlapped=length(intersect(transfer, compute)) * _S,
        makespan=length(window) * _S,
    )
