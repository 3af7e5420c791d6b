"""Whether chunk times grow linearly, which is what balances a V (docs/theory.md, 4).

Owns the test: tau_k = intercept + slope k + curvature k^2 by least squares, with 95% confidence,
and what the curvature means for the ranks of a V.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from vllm_vpp.core.timeline import SpanKind, Timeline
from vllm_vpp.errors import InputError

__all__ = ["Interval", "Linearity", "chunk_times", "linearity"]

_CONFIDENCE = 0.95
_HARMLESS = 0.02  # of a window's work


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95% confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Linearity:
    """Seconds per chunk against its number; `imbalance` as share of a rank's work in a window.

    imbalance = tau'' P (P - 1) / (2 tau), tau in the middle of the prompt: how much longer than the
    turn's rank the first rank works in each window; negative where growth levels off.
    """

    intercept: Interval
    slope: Interval
    curvature: Interval
    r_squared: float
    imbalance: Interval
    ranks: int

    @property
    def is_linear(self) -> bool:
        """Whether the curvature is within noise, or too small to matter."""
        within_noise = self.curvature.low <= 0 <= self.curvature.high
        return within_noise or abs(self.imbalance.value) < _HARMLESS

    def verdict(self) -> str:
        """One sentence for a person."""
        share = abs(self.imbalance.value) * 100
        if self.is_linear:
            return (
                f"chunk times grow linearly (curvature {self.curvature}): the ranks of a V on"
                f" {self.ranks} ranks stay balanced, within {share:.1f}%"
            )
        bends = "ever faster" if self.imbalance.value > 0 else "ever more slowly"
        return (
            f"chunk times do not grow linearly but {bends} (curvature {self.curvature}): ranks of a"
            f" V on {self.ranks} ranks differ by {share:.1f}% in the middle of the prompt"
        )


def chunk_times(timeline: Timeline) -> list[float]:
    """Seconds over all stages of the longest run of equal chunks of one prompt, from its start."""
    seconds: dict[int, float] = {}
    for span in timeline.spans:
        if span.kind is SpanKind.COMPUTE:
            took = (span.end_ns - span.start_ns) * 1e-9
            seconds[span.micro_batch] = seconds.get(span.micro_batch, 0.0) + took
    prompts: dict[str, list[tuple[int, float]]] = {}
    for batch in timeline.micro_batches:
        if len(batch.chunks) == 1 and batch.index in seconds:
            chunk = batch.chunks[0]
            prompts.setdefault(chunk.request, []).append((chunk.tokens, seconds[batch.index]))
    runs = [
        list(takewhile(lambda c, size=chunks[0][0]: c[0] == size, chunks))  # type: ignore[misc]
        for chunks in prompts.values()
    ]
    return [took for _, took in max(runs, key=len, default=[])]


def linearity(tau: Sequence[float], ranks: int) -> Linearity:
    """Test the times of equal chunks of one prompt (a shorter last one left out by the caller).

    Raises InputError with fewer than five.
    """
    from scipy.stats import t as student

    count = len(tau)
    if count < 5:
        raise InputError(f"linearity: {count} chunks; the test needs at least 5 equal ones")
    k = np.arange(count, dtype=float)
    seconds = np.array(tau)
    columns = np.stack([np.ones(count), k, k * k], axis=1)
    inverse = np.linalg.inv(columns.T @ columns)
    values = inverse @ columns.T @ seconds
    residual = seconds - columns @ values
    errors = np.sqrt(np.diagonal(inverse) * (residual @ residual) / (count - 3))
    reach = float(student.ppf((1 + _CONFIDENCE) / 2, count - 3))
    intercept, slope, curvature = (
        Interval(float(v), float(v - reach * e), float(v + reach * e))
        for v, e in zip(values, errors, strict=True)
    )
    spread = seconds - seconds.mean()
    middle = float(columns[count // 2] @ values)
    per = ranks * (ranks - 1) / middle  # tau'' is twice the curvature; a window holds two tau
    return Linearity(
        intercept=intercept,
        slope=slope,
        curvature=curvature,
        r_squared=float(1 - residual @ residual / (spread @ spread)) if spread.any() else 1.0,
        imbalance=Interval(curvature.value * per, curvature.low * per, curvature.high * per),
        ranks=ranks,
    )
