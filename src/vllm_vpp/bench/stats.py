"""Intervals for paired measurements.

Owns the one way in which this project states a ratio: pairs measured in turn, the geometric mean of
their ratios, and a 95% interval by Student's t on the logarithms.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from vllm_vpp.errors import InputError

__all__ = ["Ratio", "paired_ratio"]


class Ratio(NamedTuple):
    """Geometric mean of paired ratios, with the bounds of its 95% interval."""

    mean: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"

    @property
    def within_noise(self) -> bool:
        """Whether the interval contains 1: no difference shown."""
        return self.low <= 1.0 <= self.high


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Ratio ours/theirs of measurements taken in turn, pair by pair.

    Raises InputError for fewer than two pairs or unequal numbers.
    """
    from scipy import stats

    if len(ours) != len(theirs) or len(ours) < 2:
        raise InputError(
            f"{len(ours)} and {len(theirs)} measurements: must be equally many, two at least"
        )
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    n = len(logs)
    mean = math.fsum(logs) / n
    error = math.sqrt(math.fsum((x - mean) ** 2 for x in logs) / (n - 1) / n)
    reach = float(stats.t.ppf(0.975, n - 1)) * error
    return Ratio(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach), n)
