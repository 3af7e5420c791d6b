"""Intervals for paired measurements.

Owns the one way in which this project states a ratio: pairs measured in turn, and a 95% interval.
From eight pairs on it is the median of their ratios with a bootstrap interval, which a single
hiccup of the machine does not move; with fewer the geometric mean with Student's t on the
logarithms, since a bootstrap of few values promises too much.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from vllm_vpp.errors import InputError

__all__ = ["Ratio", "paired_ratio"]

_BOOTSTRAP_FROM = 8
_RESAMPLES = 9999


class Ratio(NamedTuple):
    """Median (geometric mean below eight pairs) of paired ratios, bounds of its 95% interval."""

    value: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        text = f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"
        return f"{text}, no difference shown" if self.within_noise else text

    @property
    def within_noise(self) -> bool:
        """Whether the interval contains 1: no difference shown."""
        return self.low <= 1.0 <= self.high


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Ratio ours/theirs of measurements taken in turn, pair by pair.

    Raises InputError for fewer than two pairs or unequal numbers.
    """
    if len(ours) != len(theirs) or len(ours) < 2:
        raise InputError(
            f"{len(ours)} and {len(theirs)} measurements: must be equally many, two at least"
        )
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    value, low, high = _median(logs) if len(logs) >= _BOOTSTRAP_FROM else _mean(logs)
    return Ratio(math.exp(value), math.exp(low), math.exp(high), len(logs))


def _mean(values: Sequence[float]) -> tuple[float, float, float]:
    from scipy import stats

    n = len(values)
    mean = math.fsum(values) / n
    error = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (n - 1) / n)
    reach = float(stats.t.ppf(0.975, n - 1)) * error
    return mean, mean - reach, mean + reach


def _median(values: Sequence[float]) -> tuple[float, float, float]:
    import numpy as np
    from scipy import stats

    found = stats.bootstrap(
        (np.array(values),),
        np.median,
        n_resamples=_RESAMPLES,
        confidence_level=0.95,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(np.median(values)), float(found.low), float(found.high)
