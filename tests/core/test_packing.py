"""What may follow a long prompt while it drains."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.core.chunking import make_policy
from vllm_vpp.core.cost import QuadraticCost, StageCost
from vllm_vpp.core.dispatch import Dispatcher
from vllm_vpp.core.layout import Layout
from vllm_vpp.core.metrics import measure
from vllm_vpp.core.order import Order
from vllm_vpp.core.packing import TOLERANCE, Packing
from vllm_vpp.sim.request import Request, at_once
from vllm_vpp.sim.simulate import Run, Setup, simulate

SIZE = 1024
LINEAR = QuadraticCost(c0=0.0, b=0.5 / SIZE, a=1.0 / SIZE**2)  # chunk k of a prompt: k + 1 seconds


def run(requests: list[Request], *, packing: bool = True, chunk: int = SIZE, ranks: int = 2) -> Run:
    layout = Layout(ranks, 2)
    shares = (1 / layout.stages,) * layout.stages
    setup = Setup(
        layout=layout,
        cost=StageCost(LINEAR, shares),
        policy=make_policy({"policy": "fixed", "chunk": chunk}, law=None, ranks=ranks),
        packing=packing,
    )
    return simulate(requests, setup)


def test_the_papers_window_of_n_plus_one() -> None:
    """N = 8 chunks of k + 1 each: chunks of 1 + 2 + 3 fit into a window of 9, the next does not."""
    layout = Layout(2, 2)
    dispatcher = Dispatcher(Order.of("greedy", layout), StageCost(LINEAR, (0.25,) * 4))
    packing = Packing(dispatcher, tolerance=0.0)

    def submit(request: str, k: int, *, ends: bool) -> None:
        batch = MicroBatch(dispatcher.submitted, (Chunk(request, k * SIZE, SIZE),))
        dispatcher.submit(batch)
        packing.submitted(batch, {request} if ends else ())

    for k in range(8):
        submit("current", k, ends=k == 7)
    for k in range(3):
        following = Chunk("next", k * SIZE, SIZE)
        assert packing.room(following, 16) == SIZE, k
        submit("next", k, ends=False)
    fourth = packing.room(Chunk("next", 3 * SIZE, SIZE), 16)
    assert 0 < fourth < SIZE  # 3 of 4 seconds are left: a part of it fits


@settings(max_examples=60)
@given(
    chunks=st.lists(st.integers(2, 12), min_size=2, max_size=4),
    ranks=st.integers(2, 4),
    size=st.sampled_from([512, 1024]),
)
def test_nobody_is_delayed_by_more_than_the_tolerance(
    chunks: list[int], ranks: int, size: int
) -> None:
    prompts = [count * size - 100 for count in chunks]
    first_alone = run(at_once(prompts[:1]), chunk=size, ranks=ranks).ttft()[0]
    first = run(at_once(prompts), chunk=size, ranks=ranks).ttft()[0]
    assert first <= first_alone * (1 + TOLERANCE) + 1e-6


def test_packing_shortens_the_whole_and_the_bubbles() -> None:
    requests = at_once([8 * SIZE] * 3)
    packed, apart = run(requests), run(requests, packing=False)
    assert packed.makespan < 0.97 * apart.makespan
    bubbles = [measure(r.timeline()).bubble_ratio for r in (packed, apart)]
    assert bubbles[0] < 0.6 * bubbles[1]
    assert packed.compute == pytest.approx(apart.compute, rel=0.02)


def test_without_packing_the_next_prompt_waits_for_the_first_token() -> None:
    apart = run(at_once([8 * SIZE] * 2), packing=False)
    alone = run(at_once([8 * SIZE]))
    assert apart.ttft()[1] == pytest.approx(2 * alone.ttft()[0])


def test_requests_one_after_another_are_not_held_back() -> None:
    gap = 3 * run(at_once([8 * SIZE])).makespan
    requests = [
        Request(name="a", prompt=8 * SIZE, output=1),
        Request(name="b", prompt=8 * SIZE, output=1, arrival=gap),
    ]
    first, second = run(requests).ttft()
    assert first == pytest.approx(second)
