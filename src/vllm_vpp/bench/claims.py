"""What was published against what was found: in size, in sign, or not.

Owns the rule. Both are ratios of times, ours over theirs: below 1 is a gain. The paper states no
uncertainty; its figures are given `SLACK` to either side.
"""

from enum import StrEnum
from typing import NamedTuple

__all__ = ["SLACK", "Range", "Verdict", "faster", "verdict"]

SLACK = 0.02


class Verdict(StrEnum):
    """How far a claim was reproduced."""

    SIZE = "in size"
    SIGN = "in sign"
    NOT_SHOWN = "not: no difference shown"
    OPPOSITE = "not: the opposite"


class Range(NamedTuple):
    """The smallest and the largest ratio of times that is meant."""

    low: float
    high: float


def faster(*percent: float) -> Range:
    """The ratios of times that gains in throughput mean, in percent."""
    ratios = [1 / (1 + p / 100) for p in percent]
    return Range(min(ratios), max(ratios))


def verdict(published: Range, found: Range) -> Verdict:
    """Found to either side of 1 with all of its range, and there within reach of the published.

    What was published lies to one side of 1 altogether.
    """
    assert (published.low < 1) == (published.high < 1), published
    if found.low <= 1 <= found.high:
        return Verdict.NOT_SHOWN
    if (found.low < 1) != (published.low < 1):
        return Verdict.OPPOSITE
    apart = found.low > published.high + SLACK or found.high < published.low - SLACK
    return Verdict.SIGN if apart else Verdict.SIZE
