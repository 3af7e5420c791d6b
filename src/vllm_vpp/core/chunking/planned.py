"""Chunks from a list: given by the user, or the best one by dynamic programming.

Source of the latter: TeraPipe's token-level slicing. Formula in docs/theory.md.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from vllm_vpp.core.chunking.view import View, next_of_plan
from vllm_vpp.core.cost import QuadraticCost

__all__ = ["DynamicProgramming", "Explicit"]

_CELLS = 128  # grid points per prompt: TeraPipe's 8-token grid is too fine for long prompts
_LIMITS = 64  # candidate longest chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class Explicit:
    """The sizes given, then the last of them again and again."""

    chunks: tuple[int, ...]

    def size(self, view: View) -> int:
        """Tokens wanted."""
        ends = _ends(self.chunks)
        if view.prefix - view.start >= ends[-1]:
            return self.chunks[-1]
        return next_of_plan(ends, view)


@lru_cache(maxsize=64)
def _ends(chunks: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(accumulate(chunks))


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicProgramming:
    """Minimises sum t_i + (ranks - 1) max t_i over all ways to cut the prompt on a grid.

    For each candidate longest time, the cheapest cut whose chunks stay below it.
    """

    law: QuadraticCost
    ranks: int

    def size(self, view: View) -> int:
        """Tokens wanted."""
        return next_of_plan(_dp_ends(self, view.start, view.length, view.block), view)


@lru_cache(maxsize=256)
def _dp_ends(policy: DynamicProgramming, start: int, length: int, block: int) -> tuple[int, ...]:
    step = max(1, -(-(length - start) // (_CELLS * block))) * block
    ends = np.append(np.arange(start, length, step), length).astype(float)
    seconds = _seconds(policy.law, ends)
    possible = seconds[np.isfinite(seconds)]
    best = float("inf")
    chosen: tuple[int, ...] = (length - start,)
    for longest in np.geomspace(np.diagonal(seconds, 1).max(), possible.max(), _LIMITS):
        if longest * policy.ranks > best:
            break
        total, sizes = _cheapest(seconds, ends, float(longest) * (1 + 1e-12))
        value = total + (policy.ranks - 1) * float(longest)
        if value < best:
            best, chosen = value, sizes
    return tuple(accumulate(chosen))


def _seconds(law: QuadraticCost, ends: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds of the chunk from ends[i] to ends[j]; infinite unless i < j."""
    prefix = ends[:, None]
    tokens = ends[None, :] - prefix
    seconds: NDArray[np.float64] = (
        law.c0 + law.gamma * prefix + law.b * tokens + law.a * tokens * (prefix + tokens / 2)
    )
    return np.where(tokens > 0, seconds, np.inf)


def _cheapest(
    seconds: NDArray[np.float64], ends: NDArray[np.float64], longest: float
) -> tuple[float, tuple[int, ...]]:
    allowed = np.where(seconds <= longest, seconds, np.inf)
    best = np.zeros(len(ends))
    came_from = np.zeros(len(ends), dtype=int)
    for j in range(1, len(ends)):
        through = best[:j] + allowed[:j, j]
        came_from[j] = through.argmin()
        best[j] = through[came_from[j]]
    sizes = []
    j = len(ends) - 1
    while j:
        i = int(came_from[j])
        sizes.append(int(ends[j] - ends[i]))
        j = i
    return float(best[-1]), tuple(reversed(sizes))
