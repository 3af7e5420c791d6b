"""The reference table: fixed policies within 0.15% (0.5% asked), ramps reached or better."""

import pytest

from vllm_vpp.core.layout import Layout
from vllm_vpp.sim.reference import ROWS, Row

NAMES = [f"{row.ranks}x{row.prompt // 1024}K-{row.overhead}" for row in ROWS]
ROUNDING = 0.0006  # the table has three decimals


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_fixed_policies_reproduce_the_table(row: Row) -> None:
    found = (
        row.best_fixed(Layout(row.ranks, 1)),
        row.best_equal_time(),
        row.best_fixed(Layout(row.ranks, 2)),
    )
    assert found == pytest.approx((row.cpp, row.dcpp, row.vpp), rel=0.0015)


@pytest.mark.parametrize("row", ROWS[:7], ids=NAMES[:7])
def test_the_search_reaches_every_ramp_value_of_the_v(row: Row) -> None:
    assert row.best_ramp(2) <= row.ramps[0] * (1 + ROUNDING)


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=NAMES)
@pytest.mark.parametrize("sweeps", [2, 3, 4])
def test_the_search_reaches_the_ramp_values_of_waves_within_a_seventh_of_a_percent(
    row: Row, sweeps: int
) -> None:
    """Reached or better but for three waves, of which the worst is 0.13% behind."""
    slack = ROUNDING if sweeps == 2 else 0.0014
    assert row.best_ramp(sweeps) <= row.ramps[sweeps - 2] * (1 + slack)
