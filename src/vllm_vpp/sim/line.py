"""A straight line through the times of equal chunks, with its 95% confidence band.

Owns the line that a picture of tau_k against k shows. Whether the times bend is `linearity`'s
question.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vllm_vpp.errors import InputError

__all__ = ["Line", "line"]

_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """tau_k = intercept + slope k in seconds; `low` and `high` bound the line at each k."""

    intercept: float
    slope: float
    r_squared: float
    low: tuple[float, ...]
    high: tuple[float, ...]

    def at(self, k: int) -> float:
        """Seconds of chunk k on the line."""
        return self.intercept + self.slope * k


def line(tau: Sequence[float]) -> Line:
    """Least squares through tau_0, tau_1, ...; the band is Student's t for the mean at k.

    half width at k = t(0.975, n - 2) s sqrt(1/n + (k - mean k)^2 / S), s^2 = residuals^2 / (n - 2),
    S = sum (k - mean k)^2. Raises InputError with fewer than three.
    """
    from scipy.stats import t as student

    count = len(tau)
    if count < 3:
        raise InputError(f"line: {count} chunks; a line with a band needs at least 3 equal ones")
    k = np.arange(count, dtype=float)
    seconds = np.array(tau)
    away = k - k.mean()
    spread = float(away @ away)
    slope = float(away @ seconds) / spread
    intercept = float(seconds.mean()) - slope * float(k.mean())
    fitted = intercept + slope * k
    residual = seconds - fitted
    error = np.sqrt(float(residual @ residual) / (count - 2) * (1 / count + away**2 / spread))
    reach = float(student.ppf((1 + _CONFIDENCE) / 2, count - 2)) * error
    total = seconds - seconds.mean()
    return Line(
        intercept=intercept,
        slope=slope,
        r_squared=float(1 - residual @ residual / (total @ total)) if total.any() else 1.0,
        low=tuple(float(v) for v in fitted - reach),
        high=tuple(float(v) for v in fitted + reach),
    )
