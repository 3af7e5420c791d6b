r"""Every metric of a timeline, simulated or measured, by one set of definitions.

Definitions (docs/metrics.md prints the same):
W = [first compute start, last compute end] over all ranks; per rank C = union of compute, X =
union of transfers, both within W.
compute = |C|; exposed communication = |X \ C|; bubble = |W \ (C u X)|; the three sum to |W|.
The bubble splits into starved (no request in the system), fill (before the rank's first compute),
drain (after its last), stall (its next input is not there yet) and host (launch-blocked): see
`occupancy`.
overlap ratio = |X n C| / |X|, absent when X is empty. bubble ratio = bubble / |W|.
cross-request bubble = bubble, not starved, between prompts that follow each other (`requests`).
distance to the limit = |W| / (W_all / P) with W_all the compute of all ranks (theory 1).
"""

from dataclasses import asdict, dataclass
from typing import Any

from vllm_vpp.core.intervals import Intervals, intersect, length, merge
from vllm_vpp.core.occupancy import Idle, Occupancy, occupancy
from vllm_vpp.core.requests import Seen, handovers
from vllm_vpp.core.timeline import SpanKind, Timeline

__all__ = ["PARTS", "Metrics", "RankMetrics", "measure"]

PARTS = ("compute", "exposed", "fill", "drain", "stall", "host", "starved")
"""Fields of `RankMetrics` that sum to the makespan."""

_S = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMetrics:
    """One rank, in seconds.

    compute + exposed + bubble = makespan, fill + drain + stall + host + starved = bubble. Apart
    from the sum: transfer = exposed + overlapped, and cross_request, a part of the bubble.
    """

    rank: int
    compute: float
    exposed: float
    fill: float
    drain: float
    stall: float
    host: float
    starved: float
    transfer: float
    overlapped: float
    cross_request: float
    makespan: float

    @property
    def bubble(self) -> float:
        """Seconds in which the rank neither computes nor transfers."""
        return self.fill + self.drain + self.stall + self.host + self.starved

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
    """A whole timeline, in seconds.

    steps: micro-batches computed. transfers: between ranks, each counted once.
    """

    makespan: float
    steps: int
    transfers: int
    ranks: tuple[RankMetrics, ...]

    def mean(self, part: str) -> float:
        """Mean over ranks of one of their fields."""
        return float(sum(getattr(r, part) for r in self.ranks) / len(self.ranks))

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
        return self.mean("exposed")

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
            "cross_request": self.mean("cross_request"),
            "steps": self.steps,
            "transfers": self.transfers,
            "ranks": ranks,
        }


def measure(timeline: Timeline, seen: Seen | None = None) -> Metrics:
    """Metrics of a timeline. Raises InputError when nothing was computed.

    `seen`: what the engine saw, where recorded; it sharpens starved, stall and host.
    """
    window = timeline.end_ns - timeline.start_ns
    between = handovers(timeline, seen)
    computed = {s.micro_batch for s in timeline.spans if s.kind is SpanKind.COMPUTE}
    return Metrics(
        makespan=window * _S,
        steps=len(computed),
        transfers=sum(s.kind is SpanKind.RECV for s in timeline.spans),
        ranks=tuple(_rank(own, between, window) for own in occupancy(timeline, seen)),
    )


def _rank(own: Occupancy, between: Intervals, window: int) -> RankMetrics:
    served = merge(p for why, parts in own.idle.items() if why is not Idle.STARVED for p in parts)
    return RankMetrics(
        rank=own.rank,
        compute=length(own.compute) * _S,
        exposed=length(own.exposed) * _S,
        **{why.value: length(parts) * _S for why, parts in own.idle.items()},
        transfer=length(own.transfer) * _S,
        overlapped=length(intersect(own.transfer, own.compute)) * _S,
        cross_request=length(intersect(served, between)) * _S,
        makespan=window * _S,
    )
