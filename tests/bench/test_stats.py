"""Intervals of paired ratios hold the truth as often as they say; a hiccup moves nothing."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_vpp.bench.stats import paired_ratio
from vllm_vpp.errors import InputError


def drifting(rng: random.Random, pairs: int, ratio: float) -> tuple[list[float], list[float]]:
    """Pairs on a machine whose speed drifts between pairs, with 2% of noise within."""
    speeds = [rng.uniform(1, 2) for _ in range(pairs)]
    theirs = [10 * speed * rng.gauss(1, 0.02) for speed in speeds]
    ours = [10 * ratio * speed * rng.gauss(1, 0.02) for speed in speeds]
    return ours, theirs


@pytest.mark.parametrize("pairs", [3, 5, 10, 20])
def test_the_interval_holds_the_true_ratio_as_often_as_it_says(pairs: int) -> None:
    rng = random.Random(3)
    held = 0
    for _ in range(200):
        found = paired_ratio(*drifting(rng, pairs, 0.9))
        held += found.low <= 0.9 <= found.high
    assert held >= 0.88 * 200


def test_a_hiccup_moves_neither_median_nor_interval() -> None:
    ours, theirs = drifting(random.Random(1), 12, 0.9)
    before = paired_ratio(ours, theirs)
    ours[4] *= 3
    after = paired_ratio(ours, theirs)
    assert after.value == pytest.approx(before.value, abs=0.02)
    assert after.high < 1


def test_no_difference_is_said_plainly() -> None:
    assert str(paired_ratio([1.0, 1.1, 0.9], [1.0, 1.0, 1.0])).endswith("no difference shown")
    assert "no difference" not in str(paired_ratio([0.5, 0.51, 0.49], [1.0, 1.0, 1.0]))


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=12), st.floats(0.5, 2))
def test_equal_ratios_have_no_width(theirs: list[float], ratio: float) -> None:
    found = paired_ratio([ratio * t for t in theirs], theirs)
    assert found == pytest.approx((ratio, ratio, ratio, len(theirs)))


@pytest.mark.parametrize(("ours", "theirs"), [([1.0], [1.0]), ([1.0, 2.0], [1.0])])
def test_too_few_or_unequal_numbers_are_refused(ours: list[float], theirs: list[float]) -> None:
    with pytest.raises(InputError, match="equally many"):
        paired_ratio(ours, theirs)
