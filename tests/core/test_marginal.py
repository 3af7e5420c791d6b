"""A cost law of any shape: its integral, the inverse of that, and the straight line among them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_vpp.core.cost import QuadraticCost
from vllm_vpp.core.marginal import Knot, MarginalCost


@st.composite
def laws(draw: st.DrawFn) -> MarginalCost:
    steps = draw(st.lists(st.floats(1, 1e5), max_size=5))
    prefix, knots = 0.0, [Knot(0.0, draw(st.floats(1e-6, 1e-3)))]
    for step in steps:
        prefix += step
        knots.append(Knot(prefix, draw(st.floats(1e-6, 1e-3))))
    return MarginalCost(c0=draw(st.floats(0, 1)), knots=tuple(knots))


@given(law=laws(), prefix=st.floats(0, 1e6), tokens=st.floats(0.5, 1e6))
def test_tokens_within_inverts_the_work(law: MarginalCost, prefix: float, tokens: float) -> None:
    seconds = law.work(prefix + tokens) - law.work(prefix)
    assert law.tokens_within(seconds, prefix) == pytest.approx(tokens, rel=1e-6, abs=1e-3)


@given(law=laws(), first=st.integers(0, 10**6), more=st.integers(1, 10**6))
def test_work_grows(law: MarginalCost, first: int, more: int) -> None:
    assert law.work(first + more) > law.work(first)


@given(
    b=st.floats(1e-7, 1e-3),
    a=st.floats(0, 1e-8),
    x=st.integers(1, 100_000),
    prefix=st.integers(0, 1_000_000),
)
def test_a_straight_marginal_cost_is_the_quadratic_law(
    b: float, a: float, x: int, prefix: int
) -> None:
    straight = MarginalCost(c0=0.1, knots=(Knot(0, b), Knot(5000, b + 5000 * a)))
    quadratic = QuadraticCost(c0=0.1, b=b, a=a)
    expected = quadratic.chunk_seconds(x, prefix)
    assert straight.chunk_seconds(x, prefix) == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert straight.work(x) == pytest.approx(quadratic.work(x))


def test_it_never_falls_beyond_the_last_knot() -> None:
    law = MarginalCost(c0=0.0, knots=(Knot(0, 2.0), Knot(10, 1.0)))
    assert law.work(30) - law.work(20) == pytest.approx(10)
