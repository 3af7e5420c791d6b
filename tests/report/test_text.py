"""Golden pictures of timelines."""

import pytest

from vllm_vpp.core.chunking import make_policy
from vllm_vpp.core.cost import QuadraticCost, StageCost
from vllm_vpp.core.layout import Layout
from vllm_vpp.core.timeline import Timeline
from vllm_vpp.errors import InputError
from vllm_vpp.report.text import render
from vllm_vpp.sim import Setup, at_once, simulate


def timeline(layout: Layout, chunks: int) -> Timeline:
    """The paper's law: chunk k takes (k + 1) seconds on each of the stages of a V of two ranks."""
    law = QuadraticCost(c0=0, b=1 / 2, a=1)
    cost = StageCost.by_layers(law, [1] * layout.stages)
    policy = make_policy({"policy": "fixed", "chunk": 1}, law=None, ranks=layout.ranks)
    return simulate(
        at_once([chunks]), Setup(layout=layout, cost=cost, policy=policy, block=1)
    ).timeline()


LINEAR = """\
rank 0 0▒▒1▒▒▒▒▒▒2▒▒▒▒▒▒▒▒3▒▒▒▒▒▒▒▒▒▒▒▒·············
rank 1 ···0▒▒····1▒▒▒▒▒···2▒▒▒▒▒▒▒▒▒···3▒▒▒▒▒▒▒▒▒▒▒▒
       0                                         7 s
▒ stages 0-1  · idle  numbers: micro-batch"""

V = """\
rank 0 0▒1▒▒0█2▒▒▒▒▒1██3▒▒▒▒▒▒2█████·········3██████
rank 1 ··0▒█1▒▒▒1███2▒▒▒▒2████3▒▒▒▒▒▒▒3██████·······
       0                                      6.25 s"""


def test_linear_picture() -> None:
    assert render(timeline(Layout(2, 1), 4), 52) == LINEAR


def test_v_picture_tells_its_sweeps_apart() -> None:
    picture = render(timeline(Layout(2, 2), 4), 52)
    assert picture.splitlines()[:3] == V.splitlines()
    assert "▒ stages 0-1  █ stages 2-3" in picture


@pytest.mark.parametrize("width", [1, 20, 80, 200])
def test_rows_have_the_width_asked_for(width: int) -> None:
    rows = render(timeline(Layout(3, 3), 5), width).splitlines()[:4]
    assert {len(row) for row in rows} == {max(width, 17)}


def test_numbers_appear_only_where_fill_shows_too() -> None:
    row = render(timeline(Layout(2, 1), 40), 60).splitlines()[0]
    assert "0▒" not in row  # the first chunks are too narrow
    assert "39▒" in row


def test_an_empty_timeline_is_refused() -> None:
    empty = Timeline(layout=Layout(2, 1), spans=(), micro_batches=(), source="measured")
    with pytest.raises(InputError, match="no compute span"):
        render(empty, 80)
