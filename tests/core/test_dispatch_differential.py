"""The dispatcher fed as an engine feeds it, against a naive simulation that knows everything.

The oracle below shares only `Layout` and `Order.key` with the dispatcher: it steps from one moment
to the next, lets everything that ends at that moment end, releases what may be released, and then
lets every free rank choose. Some micro-batches need the outcome of an earlier one: they enter after
its end, and until then nobody looks at them or at those behind them. The engine submits while fewer
than `depth` micro-batches are out, settles at arbitrary moments, and waits for the oldest when
nothing more may be submitted.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.core.dispatch import Dispatcher, Placed
from vllm_vpp.core.layout import Layout
from vllm_vpp.core.order import Candidate, Order, OrderName
from vllm_vpp.core.schedule import Action, Schedule

NS = 1_000_000_000


@dataclass(frozen=True)
class Table:
    """Seconds of each (stage, micro-batch), drawn at random."""

    seconds: dict[tuple[int, int], float]

    def time(self, stage: int, micro_batch: MicroBatch) -> float:
        return self.seconds[stage, micro_batch.index]


@dataclass(frozen=True)
class Case:
    order: Order
    depth: int
    batches: tuple[MicroBatch, ...]
    cost: Table
    transfers: Table
    after: dict[int, int] = field(default_factory=dict)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    layout = Layout(draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    count = draw(st.integers(1, 9))
    keys = [(s, m) for s in range(layout.stages) for m in range(count)]
    shape = draw(st.sampled_from(["equal", "growing", "random", "empty"]))
    drawn = st.integers(0, 6)
    if shape == "random":
        values = draw(st.lists(drawn, min_size=len(keys), max_size=len(keys)))
    else:
        values = [{"equal": 2, "growing": m + 1, "empty": 0}[shape] for _, m in keys]
    waits = draw(st.sampled_from([0, 0, 1, 3]))
    needs = {m: draw(st.none() | st.integers(0, m - 1)) for m in range(1, count)}
    return Case(
        Order(draw(st.sampled_from(OrderName)), layout),
        draw(st.integers(1, layout.stages + 3)),
        tuple(MicroBatch(m, (Chunk("r", 0, 1),)) for m in range(count)),
        Table({key: value / NS for key, value in zip(keys, values, strict=True)}),
        Table(dict.fromkeys(keys, waits / NS)),
        {m: earlier for m, earlier in needs.items() if earlier is not None},
    )


def oracle(case: Case) -> list[tuple[Action, int, int]]:
    """(action, start, end) of everything, in order of start."""
    layout, count = case.order.layout, len(case.batches)
    arrived: dict[tuple[int, int], int] = {}
    following = [0] * layout.stages
    free = [0] * layout.ranks
    ends: list[int] = []
    placed = []
    now = 0

    def released() -> int:
        return min(count, case.depth + sum(end <= now for end in ends))

    def candidates(rank: int) -> list[Candidate]:
        known = next((m for m in range(released()) if (0, m) not in arrived), released())
        return [
            Candidate(s, following[s], arrived.get((s, following[s]), now + 1) <= now)
            for s in layout.stages_of(rank)
            if following[s] < known
        ]

    while len(ends) < count or now < ends[-1]:
        for m in range(released()):
            earlier = case.after.get(m)
            if earlier is None or any(end <= now for end in ends[earlier : earlier + 1]):
                arrived.setdefault((0, m), now)
        for rank in range(layout.ranks):
            chosen = case.order.choose(candidates(rank)) if free[rank] <= now else None
            if chosen is None:
                continue
            stage, m, _ = chosen
            free[rank] = now + max(1, round(case.cost.time(stage, case.batches[m]) * NS))
            placed.append((Action(stage, m), now, free[rank]))
            following[stage] += 1
            if stage + 1 == layout.stages:
                ends.append(free[rank])
            else:
                turn = layout.enters_by_turn(stage + 1)
                wait = 0 if turn else round(case.transfers.time(stage + 1, case.batches[m]) * NS)
                arrived[stage + 1, m] = free[rank] + wait
        now = min(t for t in (*free, *arrived.values(), *ends) if t > now)
    return placed


def engine(
    case: Case, eager: Callable[[], bool], kind: type[Dispatcher] = Dispatcher
) -> list[Placed]:
    """What the executor sends out; `eager` says whether to settle before waiting."""
    dispatcher = kind(case.order, case.cost, case.transfers.time)
    placed: list[Placed] = []
    retired = 0
    for batch in case.batches:
        if dispatcher.submitted - retired == case.depth:
            placed += dispatcher.settle(retired)
            assert dispatcher.end_ns(retired) is not None, "waiting did not settle the oldest"
            dispatcher.retire(retired)
            retired += 1
        if eager():
            placed += dispatcher.settle()
        dispatcher.submit(batch, after=case.after.get(batch.index))
        dispatcher.check()
        if eager():
            placed += dispatcher.settle()
    while retired < dispatcher.submitted:
        placed += dispatcher.settle(retired)
        dispatcher.retire(retired)
        dispatcher.check()
        retired += 1
    return placed


def per_rank(case: Case, actions: list[Action]) -> tuple[tuple[Action, ...], ...]:
    return Schedule.from_order(case.order.layout, actions).actions


@settings(max_examples=600)
@given(case=cases(), data=st.data())
def test_engine_order_is_the_simulated_order(case: Case, data: st.DataObject) -> None:
    expected = oracle(case)
    eager = data.draw(st.lists(st.booleans(), min_size=2 * len(case.batches)))
    sent = engine(case, lambda: bool(eager and eager.pop()))
    assert per_rank(case, [p.action for p in sent]) == per_rank(case, [a for a, _, _ in expected])
    assert sorted((p.start_ns, p.end_ns, p.action) for p in sent) == sorted(
        (start, end, action) for action, start, end in expected
    )
    Schedule.from_order(case.order.layout, [p.action for p in sent]).check()


@settings(max_examples=200)
@given(case=cases())
def test_settled_actions_come_in_virtual_order(case: Case) -> None:
    starts = [p.start_ns for p in engine(case, lambda: True)]
    assert starts == sorted(starts)


class Hasty(Dispatcher):
    """Calls every decision final: the mistake that the tests above must catch."""

    def _is_final(self, rank: int, time_ns: int, stage: int | None) -> bool:
        return True

    def check(self) -> None:
        pass


@pytest.mark.parametrize("name", list(OrderName))
def test_settling_too_early_is_caught(name: OrderName) -> None:
    layout = Layout(2, 2)
    batches = tuple(MicroBatch(m, (Chunk("r", 0, 1),)) for m in range(6))
    keys = [(s, m) for s in range(4) for m in range(6)]
    cost = Table({(s, m): (m + 1) / NS for s, m in keys})
    case = Case(Order(name, layout), 4, batches, cost, Table(dict.fromkeys(keys, 0.0)))
    expected = sorted((start, action) for action, start, _ in oracle(case))
    for kind in (Dispatcher, Hasty):
        sent = engine(case, lambda: True, kind)
        assert (sorted((p.start_ns, p.action) for p in sent) == expected) is (kind is Dispatcher)


@pytest.mark.parametrize("name", list(OrderName))
def test_equal_input_gives_equal_order(name: OrderName) -> None:
    layout = Layout(3, 2)
    batches = tuple(MicroBatch(m, (Chunk("r", 0, 1),)) for m in range(8))
    keys = [(s, m) for s in range(6) for m in range(8)]
    table = Table({key: (1 + sum(key) % 3) / NS for key in keys})
    case = Case(Order(name, layout), 7, batches, table, table)
    assert engine(case, lambda: True) == engine(case, lambda: True)


def test_nobody_overtakes_a_held_micro_batch() -> None:
    """So what it waits for is settled without anybody waiting for a result; so it is in a fork."""
    layout = Layout(2, 2)
    keys = [(s, m) for s in range(4) for m in range(2)]
    cost = Table(dict.fromkeys(keys, 2 / NS))
    dispatcher = Dispatcher(Order(OrderName.GREEDY, layout), cost)
    dispatcher.submit(MicroBatch(0, ()))
    before = [p.action for p in dispatcher.settle()]
    assert Action(3, 0) not in before, "a newcomer might come first"
    dispatcher.submit(MicroBatch(1, ()), after=0)
    fork = dispatcher.fork()
    found = [[(p.action, p.start_ns) for p in d.settle(closed=True)] for d in (fork, dispatcher)]
    assert found[0] == found[1]
    fork.check()
    dispatcher.check()
    assert found[0][-1] == (Action(3, 1), 14)


def test_a_held_micro_batch_lets_settle_what_it_waits_for() -> None:
    layout = Layout(2, 2)
    cost = Table({(s, m): 2 / NS for s in range(4) for m in range(2)})
    dispatcher = Dispatcher(Order(OrderName.GREEDY, layout), cost)
    for index in range(2):
        dispatcher.submit(MicroBatch(index, ()), after=index - 1 if index else None)
    assert [p.action for p in dispatcher.settle()][:4] == [Action(s, 0) for s in range(4)]
