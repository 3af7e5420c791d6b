"""Chunks of equal size, equal time or equal work.

Sources: SGLang's dynamic chunking and vLLM-Ascend's profiling chunk scheduler (both "equal-time"),
Seq1F1B ("equal-flops"). Formulas in docs/theory.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor

import numpy as np

from vllm_vpp.core.chunking.view import View, next_of_plan
from vllm_vpp.core.cost import QuadraticCost

__all__ = ["EqualFlops", "EqualTime", "EqualTimeOnline", "Fixed"]

_MULTIPLE = 64  # both peers round to at least this
_REFIT_FROM, _REFIT_LAST = 5, 30  # vLLM-Ascend refits from five points on and keeps thirty


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """x = chunk; the remainder comes last (CPP)."""

    chunk: int

    def size(self, view: View) -> int:
        """Tokens wanted."""
        return self.chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualTime:
    """As long in time as the first `chunk` tokens: F(L + x) - F(L) = F(chunk), smoothed.

    x' = chunk + smoothing (x - chunk), at least `minimum` (chunk // 4 by default), rounded *down*
    to a multiple of max(block, 64). Defaults are SGLang's, which advises a `chunk` of two to three
    times the best fixed one. `multiple` and `up` (round up) set the rounding otherwise.
    """

    law: QuadraticCost
    chunk: int
    smoothing: float = 0.75
    minimum: int | None = None
    multiple: int | None = None
    up: bool = False

    def size(self, view: View) -> int:
        """Tokens wanted."""
        exact = self.law.tokens_within(self.law.work(self.chunk), view.prefix)
        minimum = self.chunk // 4 if self.minimum is None else self.minimum
        return _rounded(
            max(self.chunk + self.smoothing * (exact - self.chunk), minimum),
            self.multiple or max(view.block, _MULTIPLE),
            up=self.up,
        )


def _rounded(tokens: float, multiple: int, *, up: bool) -> int:
    steps = round(tokens / multiple, 6)
    steps = ceil(steps) if up else floor(steps)
    return max(steps, 1) * multiple


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualTimeOnline:
    """vLLM-Ascend's rule: f(x, H) = a x (x + H) + b (x + H) + c, refitted as chunks go by.

    Solves f(x, H) = f(chunk, 0), x' = chunk + smoothing (x - chunk), at least `minimum`, rounded
    *up* to a multiple of max(block, 64). Its times are those that `law` predicts, so the rule stays
    pure.
    """

    law: QuadraticCost
    chunk: int
    smoothing: float = 1.0
    minimum: int = 4096

    def size(self, view: View) -> int:
        """Tokens wanted."""
        return next_of_plan(_online_ends(self, view.start, view.length, view.block), view)


@lru_cache(maxsize=1024)
def _online_ends(policy: EqualTimeOnline, start: int, length: int, block: int) -> tuple[int, ...]:
    law, chunk = policy.law, policy.chunk
    a, b, c = law.a / 2, law.b, law.c0
    target = a * chunk**2 + b * chunk + c
    points: list[tuple[int, int, float]] = []
    ends: list[int] = []
    at = start
    while at < length:
        if len(points) >= _REFIT_FROM:
            a, b, c = _refit(points[-_REFIT_LAST:], (a, b, c))
        exact = _solve(a, a * at + b, b * at + c - target)
        wanted = chunk if exact is None else chunk + policy.smoothing * (exact - chunk)
        size = _rounded(max(wanted, policy.minimum), max(block, _MULTIPLE), up=True)
        size = min(size, length - at)
        points.append((size, at, law.c0 + law.chunk_seconds(size, at)))
        at += size
        ends.append(at - start)
    return tuple(ends)


def _refit(
    points: Sequence[tuple[int, int, float]], before: tuple[float, float, float]
) -> tuple[float, float, float]:
    x, prefix, seconds = np.array(points, dtype=float).T
    columns = np.stack([x * (x + prefix), x + prefix, np.ones_like(x)], axis=1)
    a, b, c = np.linalg.lstsq(columns, seconds, rcond=None)[0].tolist()
    return (a, max(b, 0.0), c) if a > 0 else before


def _solve(a: float, b: float, c: float) -> float | None:
    """Positive root of a x^2 + b x + c, or None."""
    inside = b * b - 4 * a * c
    if a <= 0 or inside < 0:
        return None
    root = (-b + inside**0.5) / (2 * a)
    return float(root) if root > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualFlops:
    """`chunks` chunks of equal work F, solved from the end; the first takes the remainder."""

    law: QuadraticCost
    chunks: int

    def size(self, view: View) -> int:
        """Tokens wanted."""
        return next_of_plan(_equal_ends(self, view.start, view.length, view.block), view)


@lru_cache(maxsize=1024)
def _equal_ends(policy: EqualFlops, start: int, length: int, block: int) -> tuple[int, ...]:
    law = policy.law
    share = (law.work(length) - law.work(start)) / policy.chunks
    ends = [length]
    for _ in range(policy.chunks - 1):
        before = law.tokens_within(law.work(ends[-1]) - share, 0.0)
        end = round(before / block) * block
        if not start < end < ends[-1]:
            break
        ends.append(end)
    return tuple(end - start for end in reversed(ends))
