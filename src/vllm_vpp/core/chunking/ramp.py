"""Ramp chunks: small at both ends, so that fill and drain of a V shrink, large in between.

Owns the construction of docs/theory.md (7): `up` growing chunks, equal chunks of about `peak`
tokens, then `down` chunks whose times fall by equal steps, m e, ..., 2 e, e.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from vllm_vpp.core.chunking.view import View, next_of_plan
from vllm_vpp.core.cost import QuadraticCost

__all__ = ["Ramp"]

_HALVINGS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """`multiple`: boundaries are multiples of max(block, multiple)."""

    law: QuadraticCost
    peak: int
    down: int = 4
    up: int = 1
    multiple: int = 1

    def size(self, view: View) -> int:
        """Tokens wanted."""
        return next_of_plan(_ramp_plan(self, view.start, view.length, view.block), view)


@lru_cache(maxsize=4096)
def _ramp_plan(policy: Ramp, start: int, length: int, block: int) -> tuple[int, ...]:
    law, peak, down = policy.law, policy.peak, policy.down
    ramp_from = _ramp_start(policy, start, length)
    ends = _up_and_flat(policy, start, ramp_from)
    if down:
        step = 2 * (law.work(length) - law.work(ramp_from)) / (down * (down + 1))
        at = ramp_from
        for count in range(down, 0, -1):
            at += law.tokens_within(count * step, at)
            ends.append(at)
    multiple = max(block, policy.multiple)
    rounded = sorted({round(end / multiple) * multiple for end in ends})
    inside = [end for end in rounded if start < end < length]
    assert peak > 0
    return tuple(after - before for before, after in pairwise([start, *inside, length]))


def _ramp_start(policy: Ramp, start: int, length: int) -> float:
    """L0: F(T) - F(L0) = e m (m + 1) / 2 where (m + 1) e = F(L0 + C) - F(L0), by bisection."""
    law, half = policy.law, policy.down / 2

    def left_over(at: float) -> float:
        return law.work(length) - law.work(at) - half * (law.work(at + policy.peak) - law.work(at))

    low, high = float(start), float(length)
    if left_over(low) <= 0:  # the ramp alone is longer than the prompt
        return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if left_over(middle) > 0 else (low, middle)
    return low


def _up_and_flat(policy: Ramp, start: int, until: float) -> list[float]:
    """Ends of the growing and of the equal chunks, in [start, until]."""
    growing = [policy.peak * j / (policy.up + 1) for j in range(1, policy.up + 1)]
    if sum(growing) > until - start:
        growing = []
    ends: list[float] = []
    at = float(start)
    for size in growing:
        at += size
        ends.append(at)
    count = max(1, round((until - at) / policy.peak))
    return [*ends, *(at + (until - at) * k / count for k in range(1, count + 1))]
