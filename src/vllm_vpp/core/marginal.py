"""A cost law of any shape: what one more token costs, as a function of how many precede it.

Owns the piecewise linear marginal cost g(L), its integral F and the inverse of F. Attention over
the whole prefix gives a straight line (and then `core.cost.QuadraticCost` is the same law); sliding
windows and sparse attention level off.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from vllm_vpp.core.batch import MicroBatch

__all__ = ["Knot", "MarginalCost"]


class Knot(NamedTuple):
    """Seconds that one more token costs after `prefix` tokens."""

    prefix: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MarginalCost:
    """c0 + gamma L + F(L + x) - F(L) seconds for a chunk of x tokens after L; F is g integrated.

    `knots`: g at growing prefixes from 0 on, straight in between, after the last as steep as before
    it but never falling; at least one, none below 0, not two zeros in a row. `c0`: seconds per
    micro-batch. `gamma`: seconds per prefix token of a chunk.
    """

    c0: float
    knots: tuple[Knot, ...]
    gamma: float = 0.0

    def __post_init__(self) -> None:
        assert self.knots, "no knots"
        assert self.knots[0].prefix == 0, self.knots[0]
        for before, after in pairwise(self.knots):
            assert before.prefix < after.prefix, (before, after)
            assert before.seconds + after.seconds > 0, (before, after)
        assert self.knots[-1].seconds > 0, self.knots[-1]
        assert all(knot.seconds >= 0 for knot in self.knots)

    def chunk_seconds(self, tokens: int, prefix: int) -> float:
        """Seconds of one chunk without the fixed part c0."""
        return self.gamma * prefix + self.work(prefix + tokens) - self.work(prefix)

    def work(self, tokens: float) -> float:
        """F(x): seconds of the first x tokens, neither c0 nor gamma counted."""
        prefixes, before = _integral(self.knots)
        at = bisect_right(prefixes, tokens) - 1
        start, slope = self.knots[at], self._slope(at)
        x = tokens - start.prefix
        return before[at] + start.seconds * x + slope * x * x / 2

    def tokens_within(self, seconds: float, prefix: float) -> float:
        """The x that solves F(prefix + x) - F(prefix) = seconds; 0 for none left."""
        target = self.work(prefix) + max(seconds, 0.0)
        _, before = _integral(self.knots)
        at = bisect_right(before, target) - 1
        start, slope = self.knots[at], self._slope(at)
        left = target - before[at]
        root = start.seconds + max(start.seconds**2 + 2 * slope * left, 0.0) ** 0.5
        return max(start.prefix + (2 * left / root if root else 0.0) - prefix, 0.0)

    def seconds(self, micro_batch: MicroBatch) -> float:
        """Whole-model seconds of a micro-batch; 0 for an empty one."""
        if not micro_batch.chunks:
            return 0.0
        return self.c0 + sum(self.chunk_seconds(c.tokens, c.prefix) for c in micro_batch.chunks)

    def _slope(self, at: int) -> float:
        last = at + 1 == len(self.knots)
        if last and at == 0:
            return 0.0
        start, end = self.knots[at - last], self.knots[at - last + 1]
        slope = (end.seconds - start.seconds) / (end.prefix - start.prefix)
        return max(slope, 0.0) if last else slope


@lru_cache(maxsize=64)
def _integral(knots: Sequence[Knot]) -> tuple[list[float], list[float]]:
    """Prefixes of the knots, and F at each of them."""
    areas = (
        (after.prefix - before.prefix) * (before.seconds + after.seconds) / 2
        for before, after in pairwise(knots)
    )
    return [knot.prefix for knot in knots], list(accumulate(areas, initial=0.0))
