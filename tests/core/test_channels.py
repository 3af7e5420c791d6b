"""Deadlocks of rendezvous transfers: one group per direction hangs, one per sweep never does."""

import pytest

from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.core.channels import GroupOf, one_group, one_group_per_sweep, stuck_actions
from vllm_vpp.core.cost import QuadraticCost, StageCost
from vllm_vpp.core.dispatch import Dispatcher
from vllm_vpp.core.layout import Layout
from vllm_vpp.core.order import Order, OrderName
from vllm_vpp.core.schedule import Action, Schedule

LAYOUTS = [Layout(ranks, sweeps) for ranks in range(1, 9) for sweeps in range(1, 5)]


def schedule_of(layout: Layout, order: OrderName, depth: int, chunks: int) -> Schedule:
    """What an engine would send out for one prompt of growing chunks."""
    law = QuadraticCost(c0=0.01, b=1e-5, a=1e-9)
    dispatcher = Dispatcher(Order(order, layout), StageCost.by_layers(law, [1] * layout.stages))
    actions: list[Action] = []
    for index in range(chunks):
        if index >= depth:
            actions += [p.action for p in dispatcher.settle(index - depth)]
            dispatcher.retire(index - depth)
        dispatcher.submit(MicroBatch(index, (Chunk("r", index * 4096, 4096),)))
    actions += [p.action for p in dispatcher.settle(closed=True)]
    return Schedule.from_order(layout, actions)


@pytest.mark.parametrize("order", list(OrderName))
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: f"{x.name}x{x.ranks}")
def test_one_group_per_sweep_never_hangs(layout: Layout, order: OrderName) -> None:
    for depth in sorted({1, 2, layout.ranks, layout.ranks + 1, layout.depth(), layout.depth() + 3}):
        schedule = schedule_of(layout, order, depth, chunks=2 * layout.stages + 3)
        schedule.check()
        for ahead in (0, 1, 3):
            assert stuck_actions(schedule, one_group_per_sweep, post_ahead=ahead) == []


def hanging(layouts: list[Layout], order: OrderName, group: GroupOf) -> set[tuple[int, int]]:
    """(ranks, sweeps) of the layouts that hang at some depth."""
    return {
        (layout.ranks, layout.sweeps)
        for layout in layouts
        for depth in (2, layout.ranks + 1, layout.depth())
        if stuck_actions(schedule_of(layout, order, depth, 2 * layout.stages + 3), group)
    }


def test_one_group_for_all_sweeps_hangs_every_folded_layout_and_no_linear_one() -> None:
    folded = [x for x in LAYOUTS if x.sweeps > 1 and x.ranks > 1]
    linear = [x for x in LAYOUTS if x.sweeps == 1 or x.ranks == 1]
    for order in OrderName:
        assert hanging(linear, order, one_group) == set()
        assert hanging(folded, order, one_group_per_sweep) == set()
    assert hanging(folded, OrderName.GREEDY, one_group) == {(x.ranks, x.sweeps) for x in folded}


def test_the_deadlock_of_the_paper() -> None:
    """Both ranks want to send first: s0's output forward, s2's output back, on one channel."""
    layout = Layout(2, 2)
    text = "0: s0/C0 s0/C1 s3/C0 s3/C1\n1: s1/C0 s2/C0 s1/C1 s2/C1"
    schedule = Schedule.parse(layout, text)
    schedule.check()
    assert stuck_actions(schedule, one_group) != []
    assert stuck_actions(schedule, one_group_per_sweep) == []


def test_no_transfer_happens_at_a_turn() -> None:
    """With one rank every boundary is a turn, so nothing can hang, whatever the groups."""
    layout = Layout(1, 3)
    schedule = schedule_of(layout, OrderName.GREEDY, 4, 5)
    assert stuck_actions(schedule, one_group) == []


def test_a_schedule_in_the_wrong_order_hangs_even_on_its_own_groups() -> None:
    text = "0: s0/C0 s0/C1 s3/C1 s3/C0\n1: s1/C0 s2/C0 s1/C1 s2/C1"
    assert stuck_actions(Schedule.parse(Layout(2, 2), text), one_group_per_sweep) != []
