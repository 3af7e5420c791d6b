"""The reference table of docs/theory.md: makespan over W/P, fixed policies within 0.5%."""

from typing import Any, NamedTuple

import pytest

from vllm_vpp.core.chunking import make_policy
from vllm_vpp.core.cost import QuadraticCost, StageCost
from vllm_vpp.core.layout import Layout
from vllm_vpp.sim import Links, Request, Setup, simulate

K = 1024
FIXED = [c * K for c in (2, 4, 8, 12, 16, 24, 32)]


class Row(NamedTuple):
    ranks: int
    prompt: int
    share: float
    overhead: int
    cpp: float
    dcpp: float
    vpp: float


ROWS = [
    Row(2, 32 * K, 0.30, 512, 1.256, 1.227, 1.224),
    Row(2, 128 * K, 0.50, 512, 1.111, 1.093, 1.095),
    Row(2, 128 * K, 0.50, 2048, 1.224, 1.191, 1.165),
    Row(2, 512 * K, 0.80, 2048, 1.076, 1.057, 1.050),
    Row(4, 128 * K, 0.50, 512, 1.201, 1.168, 1.163),
    Row(4, 256 * K, 0.67, 2048, 1.245, 1.190, 1.184),
    Row(8, 128 * K, 0.50, 512, 1.304, 1.257, 1.252),
    Row(8, 512 * K, 0.80, 2048, 1.204, 1.156, 1.161),
    Row(8, 1024 * K, 0.90, 512, 1.052, 1.039, 1.039),
]


def law_of(row: Row) -> QuadraticCost:
    """W without overhead is 1."""
    linear = (1 - row.share) / row.prompt
    return QuadraticCost(c0=linear * row.overhead, b=linear, a=2 * row.share / row.prompt**2)


def distance(row: Row, layout: Layout, **spec: Any) -> float:
    """Makespan over W/P, W without overhead."""
    law = law_of(row)
    setup = Setup(
        layout=layout,
        cost=StageCost.by_layers(law, [1] * layout.stages),
        policy=make_policy(spec, law=law, ranks=row.ranks),
        links=Links(latency=0.0005 / (row.prompt / 8192)),
        block=1,
        depth=10**6,
    )
    return simulate([Request(name="r", prompt=row.prompt)], setup).makespan * row.ranks


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r.ranks}x{r.prompt // K}K-{r.overhead}")
def test_fixed_policies_reproduce_the_table(row: Row) -> None:
    linear, v = Layout(row.ranks, 1), Layout(row.ranks, 2)
    cpp = min(distance(row, linear, policy="fixed", chunk=c) for c in FIXED)
    vpp = min(distance(row, v, policy="fixed", chunk=c) for c in FIXED)
    dcpp = min(
        distance(
            row,
            linear,
            policy="equal-time",
            chunk=c,
            smoothing=1.0,
            minimum=1024,
            multiple=128,
            up=True,
        )
        for c in [*FIXED, 48 * K, 64 * K, 96 * K]
    )
    assert (cpp, dcpp, vpp) == pytest.approx((row.cpp, row.dcpp, row.vpp), rel=0.0015)
