"""How long a stage takes on a micro-batch: the protocol, and the quadratic model behind it.

Owns the one signature that the dispatcher, the simulator and the planner share, and the one that
chunking policies plan with. Richer models (analytic, fitted, table, marginal) implement the same
protocols elsewhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from vllm_vpp.core.batch import MicroBatch

__all__ = ["CostModel", "Law", "QuadraticCost", "RowCost", "StageCost", "stage_seconds"]


class CostModel(Protocol):
    """Seconds of compute, without transfers."""

    def time(self, stage: int, micro_batch: MicroBatch) -> float:
        """Seconds that `stage` computes on `micro_batch`."""
        ...


class RowCost(CostModel, Protocol):
    """A cost model that gives all stages at once for less than their number of calls."""

    def times(self, micro_batch: MicroBatch) -> Sequence[float]:
        """Seconds of every stage."""
        ...


def stage_seconds(cost: CostModel, micro_batch: MicroBatch, stages: int) -> Sequence[float]:
    """Seconds of every stage."""
    times: Callable[[MicroBatch], Sequence[float]] | None = getattr(cost, "times", None)
    if times is not None:  # RowCost
        return times(micro_batch)
    return [cost.time(stage, micro_batch) for stage in range(stages)]


class Law(Protocol):
    """Whole-model cost of the chunks of a prompt, as chunking policies plan with it."""

    @property
    def c0(self) -> float:
        """Seconds per micro-batch, whatever is in it."""
        ...

    def chunk_seconds(self, tokens: int, prefix: int) -> float:
        """Seconds of one chunk without the fixed part c0."""
        ...

    def work(self, tokens: float) -> float:
        """F(x): seconds of the first x tokens, fixed parts not counted; grows strictly."""
        ...

    def tokens_within(self, seconds: float, prefix: float) -> float:
        """The x that solves F(prefix + x) - F(prefix) = seconds; 0 for none left."""
        ...

    def seconds(self, micro_batch: MicroBatch) -> float:
        """Whole-model seconds of a micro-batch; 0 for an empty one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QuadraticCost:
    """Whole-model seconds of a chunk of x tokens after L: c0 + gamma L + b x + a x (L + x/2).

    Source: ROCm ATOM's chunk-time form (gamma: rebuild of latent-attention prefixes).

    c0: seconds per micro-batch. b: seconds per token. a: seconds per token and prefix token.
    gamma: seconds per prefix token of a chunk.
    """

    c0: float
    b: float
    a: float
    gamma: float = 0.0

    def chunk_seconds(self, tokens: int, prefix: int) -> float:
        """Seconds of one chunk without the fixed part c0."""
        return self.gamma * prefix + self.b * tokens + self.a * tokens * (prefix + tokens / 2)

    def work(self, tokens: float) -> float:
        """F(x) = b x + a x^2 / 2: seconds of the first x tokens, neither c0 nor gamma counted."""
        return self.b * tokens + self.a * tokens * tokens / 2

    def tokens_within(self, seconds: float, prefix: float) -> float:
        """The x that solves F(prefix + x) - F(prefix) = seconds; 0 for none left."""
        seconds = max(seconds, 0.0)
        linear = self.b + self.a * prefix
        root = linear + (linear * linear + 2 * self.a * seconds) ** 0.5
        return 2 * seconds / root if root else float("inf")

    def seconds(self, micro_batch: MicroBatch) -> float:
        """Whole-model seconds of a micro-batch; 0 for an empty one."""
        chunks = micro_batch.chunks
        if len(chunks) == 1:  # most are; simulations ask millions of times
            _, prefix, tokens = chunks[0]
            return self.c0 + self.chunk_seconds(tokens, prefix)
        if not chunks:
            return 0.0
        return self.c0 + sum(self.chunk_seconds(c.tokens, c.prefix) for c in chunks)


@dataclass(frozen=True, slots=True)
class StageCost:
    """A whole-model cost divided over stages by fixed shares, for instance layer counts.

    `shares` has one non-negative entry per stage and sums to 1.
    """

    model: Law
    shares: tuple[float, ...]

    @classmethod
    def by_layers(cls, model: Law, layers: Sequence[int]) -> "StageCost":
        """Shares in proportion to the layers of each stage."""
        total = sum(layers)
        return cls(model, tuple(count / total for count in layers))

    def time(self, stage: int, micro_batch: MicroBatch) -> float:
        """Seconds that `stage` computes on `micro_batch`."""
        return self.shares[stage] * self.model.seconds(micro_batch)

    def times(self, micro_batch: MicroBatch) -> list[float]:
        """Seconds of every stage."""
        whole = self.model.seconds(micro_batch)
        return [share * whole for share in self.shares]
