"""Schedules as data: text form, validator, golden grids of the paper's orders."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.core.cost import QuadraticCost, StageCost
from vllm_vpp.core.dispatch import Dispatcher
from vllm_vpp.core.layout import Layout, LayoutKind
from vllm_vpp.core.order import Candidate, Order, OrderName
from vllm_vpp.core.schedule import Action, Schedule, grid, unit_starts
from vllm_vpp.errors import ConfigError, ScheduleError


def schedule_of(order: OrderName, layout: Layout, chunks: int, *, growth: float = 0.0) -> Schedule:
    """Unit times (or growing ones), all micro-batches known from the start."""
    law = QuadraticCost(c0=0.0, b=1.0, a=growth)
    dispatcher = Dispatcher(Order(order, layout), StageCost.by_layers(law, [1] * layout.stages))
    for index in range(chunks):
        dispatcher.submit(MicroBatch(index, (Chunk("r", index, 1),)))
    placed = dispatcher.settle(closed=True)
    dispatcher.check()
    return Schedule.from_order(layout, (p.action for p in placed))


def test_golden_linear_grid() -> None:
    assert grid(schedule_of(OrderName.GREEDY, Layout(2, 1), 3)) == (
        "0: s0/C0 s0/C1 s0/C2 .\n1: .     s1/C0 s1/C1 s1/C2"
    )


def test_golden_greedy_v_grid() -> None:
    assert grid(schedule_of(OrderName.GREEDY, Layout(2, 2), 4)) == (
        "0: s0/C0 s0/C1 s0/C2 s3/C0 s0/C3 s3/C1 .     s3/C2 .     s3/C3\n"
        "1: .     s1/C0 s2/C0 s1/C1 s2/C1 s1/C2 s2/C2 s1/C3 s2/C3 ."
    )


def test_async_issues_the_head_before_the_tail_and_vanilla_after() -> None:
    """The paper's window: rank 0 runs s0/C_{k+1} and s3/C_{k-1} while rank 1 works on C_k."""
    later = {
        order: [str(a) for a in schedule_of(order, Layout(2, 2), 5).actions[0]]
        for order in (OrderName.ASYNC, OrderName.VANILLA)
    }
    for k in (1, 2, 3):
        head, tail = f"s0/C{k + 1}", f"s3/C{k - 1}"
        assert later[OrderName.ASYNC].index(head) + 1 == later[OrderName.ASYNC].index(tail)
        assert later[OrderName.VANILLA].index(tail) + 1 == later[OrderName.VANILLA].index(head)


shapes = st.builds(Layout, st.integers(1, 5), st.integers(1, 4))


@given(
    order=st.sampled_from(OrderName),
    layout=shapes,
    chunks=st.integers(0, 9),
    growth=st.sampled_from([0.0, 0.5]),
)
def test_generated_schedules_obey_every_rule_and_round_trip(
    order: OrderName, layout: Layout, chunks: int, growth: float
) -> None:
    schedule = schedule_of(order, layout, chunks, growth=growth)
    schedule.check()
    assert Schedule.parse(layout, str(schedule)) == schedule
    assert schedule.micro_batches == chunks
    assert sum(map(len, schedule.actions)) == chunks * layout.stages
    assert [len(s) for s in unit_starts(schedule)] == [len(a) for a in schedule.actions]


@given(data=st.data(), layout=shapes, chunks=st.integers(2, 6))
def test_any_swap_that_breaks_a_rule_is_found(
    data: st.DataObject, layout: Layout, chunks: int
) -> None:
    """Swapping two actions of one stage always breaks the order of micro-batches."""
    schedule = schedule_of(OrderName.GREEDY, layout, chunks)
    rank = data.draw(st.integers(0, layout.ranks - 1))
    stage = data.draw(st.sampled_from(layout.stages_of(rank)))
    actions = list(schedule.actions[rank])
    places = [i for i, a in enumerate(actions) if a.stage == stage]
    i, j = data.draw(st.permutations(places).map(lambda p: p[:2]))
    actions[i], actions[j] = actions[j], actions[i]
    ranks = list(schedule.actions)
    ranks[rank] = tuple(actions)
    with pytest.raises(ScheduleError, match="must see micro-batch"):
        Schedule(layout, tuple(ranks)).check()


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("0: s0/C0 s3/C0\n1: s1/C0", "s2/C0 is missing"),
        ("0: s0/C0 s3/C0\n1: s2/C0 s1/C0", "cycle"),
        ("0: s0/C0 s1/C0 s3/C0\n1: s2/C0", "not its stage"),
        ("0: s0/C0 s0/C0 s3/C0\n1: s1/C0 s2/C0", "must see micro-batch 1 next"),
        ("0: s0/C1 s3/C0\n1: s1/C0 s2/C0", "must see micro-batch 0 next"),
        ("0: s0/C0 s7/C0\n1: s1/C0 s2/C0", "not its stage"),
    ],
)
def test_broken_schedules_show_the_grid_and_the_cell(text: str, fragment: str) -> None:
    with pytest.raises(ScheduleError) as error:
        Schedule.parse(Layout(2, 2), text).check()
    message = str(error.value)
    assert fragment in message
    assert "\n0:" in message
    if "missing" not in fragment:
        assert ">" in message


@pytest.mark.parametrize("text", ["0: s0/C0", "1: s0/C0\n0:", "0: x\n1:", "0: s0/C0 s-1/C0\n1:"])
def test_text_that_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(ScheduleError):
        Schedule.parse(Layout(2, 2), text)


@given(layout=shapes)
def test_layouts_fold(layout: Layout) -> None:
    owned = [stage for rank in range(layout.ranks) for stage in layout.stages_of(rank)]
    assert sorted(owned) == list(range(layout.stages))
    turns = [s for s in range(layout.stages) if layout.enters_by_turn(s)]
    assert turns == [layout.ranks * k for k in range(1, layout.sweeps)] or layout.ranks == 1
    for stage in range(1, layout.stages):
        assert abs(layout.owner(stage) - layout.owner(stage - 1)) <= 1
    if layout.sweeps == 2:
        for rank in range(layout.ranks):
            assert layout.stages_of(rank) == (rank, 2 * layout.ranks - 1 - rank)


@pytest.mark.parametrize(
    ("kind", "ranks", "sweeps", "fragment"),
    [
        ("x", 2, None, "linear, v, wave"),
        ("wave", 2, None, "needs the number of sweeps"),
        ("v", 2, 3, "sweeps=3"),
        ("v", 0, None, "ranks=0"),
        ("wave", 2, 0, "sweeps=0"),
    ],
)
def test_impossible_layouts_are_one_clear_line(
    kind: str, ranks: int, sweeps: int | None, fragment: str
) -> None:
    with pytest.raises(ConfigError, match=fragment) as error:
        Layout.of(kind, ranks, sweeps)
    assert "\n" not in str(error.value)


def test_layout_names() -> None:
    assert [Layout(2, s).name for s in (1, 2, 3)] == ["linear", "v", "wave3"]
    assert Layout.of("wave", 2, 3).kind is LayoutKind.WAVE


def test_unknown_order_is_one_clear_line() -> None:
    with pytest.raises(ConfigError, match="greedy, async, vanilla"):
        Order.of("lazy", Layout(2, 2))


@given(layout=shapes, data=st.data())
def test_preference_is_what_choose_does(layout: Layout, data: st.DataObject) -> None:
    """The dispatcher's short cut for orders with a fixed preference."""
    order = Order(OrderName.GREEDY, layout)
    rank = data.draw(st.integers(0, layout.ranks - 1))
    candidates = [
        Candidate(stage, data.draw(st.integers(0, 9)), data.draw(st.booleans()))
        for stage in layout.stages_of(rank)
    ]
    preference = order.preference(rank)
    assert preference is not None
    ready = [c.stage for c in candidates if c.ready]
    first = next((stage for stage in preference if stage in ready), None)
    chosen = order.choose(candidates)
    assert (chosen.stage if chosen else None) == first
    settled = order.settled(rank, candidates, 10)
    assert settled is (bool(ready) or rank != layout.owner(0))


def test_actions_parse() -> None:
    assert Action.parse("s3/C12") == Action(3, 12)
    assert str(Action(3, 12)) == "s3/C12"
