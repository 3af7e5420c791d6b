"""The line through chunk times, and what its band promises."""

import numpy as np
import pytest

from vllm_vpp.errors import InputError
from vllm_vpp.sim.line import line


def test_an_exact_line_is_found_with_a_band_of_no_width() -> None:
    found = line([2 + 3 * k for k in range(6)])
    assert (found.intercept, found.slope, found.r_squared) == pytest.approx((2, 3, 1))
    assert found.low == pytest.approx([found.at(k) for k in range(6)])
    assert found.high == pytest.approx(found.low)


def test_the_band_holds_the_true_line_nineteen_times_in_twenty() -> None:
    rng = np.random.default_rng(1)
    truth = 1 + 0.5 * np.arange(8)
    inside = 0
    for _ in range(1000):
        found = line(list(truth + rng.normal(0, 0.1, 8)))
        inside += found.low[2] <= truth[2] <= found.high[2]
    assert 930 <= inside <= 970


def test_two_chunks_have_no_band() -> None:
    with pytest.raises(InputError, match="at least 3"):
        line([1.0, 2.0])
