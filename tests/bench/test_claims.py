"""Verdicts follow from the intervals and from nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_vpp.bench.claims import SLACK, Range, Verdict, faster, verdict

PUBLISHED = faster(4.1, 10.0)


def test_a_gain_in_throughput_is_a_ratio_of_times_below_one() -> None:
    assert tuple(faster(10.0)) == pytest.approx((1 / 1.1, 1 / 1.1))
    assert faster(-4.4).low == pytest.approx(1.046, abs=1e-3)
    assert tuple(PUBLISHED) == pytest.approx((0.9091, 0.9606), abs=1e-4)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((0.92, 0.94), Verdict.SIZE),
        ((0.85, 0.92), Verdict.SIZE),
        ((0.97, 0.99), Verdict.SIZE),
        ((0.985, 0.995), Verdict.SIGN),
        ((0.70, 0.80), Verdict.SIGN),
        ((0.90, 1.01), Verdict.NOT_SHOWN),
        ((1.0, 1.2), Verdict.NOT_SHOWN),
        ((1.01, 1.02), Verdict.OPPOSITE),
    ],
)
def test_a_published_gain(found: tuple[float, float], expected: Verdict) -> None:
    assert verdict(PUBLISHED, Range(*found)) is expected


def test_a_published_loss() -> None:
    loss = faster(-6.8)
    assert verdict(loss, Range(1.05, 1.09)) is Verdict.SIZE
    assert verdict(loss, Range(1.2, 1.3)) is Verdict.SIGN
    assert verdict(loss, Range(0.9, 0.95)) is Verdict.OPPOSITE


@given(st.floats(0.5, 1.5), st.floats(0, 0.2), st.floats(0.001, 0.2))
def test_a_wider_interval_never_shows_more(low: float, width: float, more: float) -> None:
    narrow = verdict(PUBLISHED, Range(low, low + width))
    wide = verdict(PUBLISHED, Range(low - more, low + width + more))
    shown = (Verdict.SIGN, Verdict.SIZE, Verdict.OPPOSITE)
    assert wide in shown or wide is Verdict.NOT_SHOWN
    if narrow is Verdict.NOT_SHOWN:
        assert wide is Verdict.NOT_SHOWN
    if wide is Verdict.OPPOSITE:
        assert narrow is Verdict.OPPOSITE


def test_the_slack_is_on_both_sides() -> None:
    one = Range(0.9, 0.9)
    assert verdict(one, Range(0.9 + SLACK - 1e-9, 0.95)) is Verdict.SIZE
    assert verdict(one, Range(0.85, 0.9 - SLACK + 1e-9)) is Verdict.SIZE
    assert verdict(one, Range(0.9 + SLACK + 1e-9, 0.95)) is Verdict.SIGN
