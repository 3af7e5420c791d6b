"""Ramp chunks: small at both ends, so that fill and drain of a V shrink, large in between.

Owns the construction of docs/theory.md (7): `up` growing chunks, chunks of about `peak` tokens
whose times grow linearly (theory 4), then `down` chunks whose times fall by equal steps, m e, ...,
2 e, e. Where the law is quadratic, the chunks in between are equal; for any other law their
boundaries are chosen such that the times are in line.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from vllm_vpp.core.chunking.view import View, next_of_plan
from vllm_vpp.core.cost import Law, QuadraticCost

__all__ = ["Hybrid", "Ramp"]

_HALVINGS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """`multiple`: boundaries are multiples of max(block, multiple)."""

    law: Law
    peak: int
    down: int = 4
    up: int = 1
    multiple: int = 1

    def size(self, view: View) -> int:
        """Tokens wanted."""
        ends = _ramp_ends(self, view.start, view.length, view.block, view.begun)
        return next_of_plan(ends, view)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hybrid(Ramp):
    """A ramp whose law may have any shape, for models whose chunk times do not grow linearly.

    `threshold`: relative error of the law on the newest chunks beyond which whoever measures them
    fits it anew, and has the chunks still to come planned anew.
    """

    threshold: float = 0.05


@lru_cache(maxsize=4096)
def _ramp_ends(policy: Ramp, start: int, length: int, block: int, begun: bool) -> tuple[int, ...]:
    law, peak, down = policy.law, policy.peak, policy.down
    ramp_from = _ramp_start(policy, start, length)
    ends = _up_and_flat(policy, start, ramp_from, 0 if begun else policy.up)
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
    return tuple(end - start for end in [*inside, length])


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


def _up_and_flat(policy: Ramp, start: int, until: float, up: int) -> list[float]:
    """Ends of the growing and of the flat chunks, in [start, until]."""
    growing = [policy.peak * j / (up + 1) for j in range(1, up + 1)]
    if sum(growing) > until - start:
        growing = []
    ends: list[float] = []
    at = float(start)
    for size in growing:
        at += size
        ends.append(at)
    count = max(1, round((until - at) / policy.peak))
    equal = [at + (until - at) * k / count for k in range(count + 1)]
    return [*ends, *_in_line(policy.law, equal)[1:]]


def _in_line(law: Law, ends: list[float]) -> list[float]:
    """Boundaries of as many chunks whose times grow linearly, about as steeply as those given."""
    count = len(ends) - 1
    if isinstance(law, QuadraticCost) or count < 3:
        return ends
    work = [law.work(end) for end in ends]
    times = [after - before for before, after in pairwise(work)]
    middle = (count - 1) / 2
    squares = count * (count * count - 1) / 12
    slope = sum((k - middle) * time for k, time in enumerate(times)) / squares
    mean = (work[-1] - work[0]) / count
    if mean <= abs(slope) * middle:
        return ends
    moved = [ends[0]]
    for k in range(count):
        moved.append(moved[-1] + law.tokens_within(mean + slope * (k - middle), moved[-1]))
    return moved
