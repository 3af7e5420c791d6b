"""`Flow` and its dispatcher against fake ranks, in every legal order of calls."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from fake_ranks import DeadlockError, Pick, Ranks, Reply
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.core.dispatch import Dispatcher, Placed
from vllm_vpp.core.layout import Layout
from vllm_vpp.core.order import Order, OrderName
from vllm_vpp.core.schedule import Action, Schedule
from vllm_vpp.plugin.flow import Flow, LazyResult
from vllm_vpp.plugin.message import Actions, Step

NS = 1_000_000_000


@dataclass(frozen=True)
class Drawn:
    """Seconds of compute, drawn when first asked and remembered."""

    pick: Pick
    seconds: dict[tuple[int, int], float] = field(default_factory=dict)

    def time(self, stage: int, micro_batch: MicroBatch) -> float:
        if not micro_batch.chunks:
            return 0.0
        key = (stage, micro_batch.index)
        return self.seconds.setdefault(key, (1 + self.pick(5)) / NS)


@dataclass
class Engine:
    """What vLLM's engine core may do: see `EngineCore.step_with_batch_queue`."""

    flow: Flow
    ranks: Ranks
    depth: int
    waiting: dict[int, LazyResult] = field(default_factory=dict)
    given: dict[int, tuple[bool, Any]] = field(default_factory=dict)
    deferred: int | None = None
    awaited: dict[int, dict[str, int]] = field(default_factory=dict)

    def submit(self, tokens: int, *, defer: bool, after: int | None = None) -> None:
        """`after`: the micro-batch whose token this one continues with."""
        index = self.flow.next_index
        chunks = (Chunk("r", 0, tokens),) if tokens else ()
        awaits = self.awaited[index] = {} if after is None else {"r": after}
        self.waiting[index] = self.flow.submit(Step(index, tokens, chunks, b"", awaits))
        if tokens and defer:
            self.deferred = index
        else:
            self.allow(index, samples=bool(tokens))

    def allow(self, index: int, *, samples: bool) -> None:
        assert index not in self.ranks.sampling, "the last stage ran before its sampling input"
        self.given[index] = (samples, f"grammar {index}" if samples else None)
        self.flow.allow_sampling(index, samples=samples, grammar=self.given[index][1])

    def allow_deferred(self) -> None:
        if self.deferred is not None:
            index, self.deferred = self.deferred, None
            self.allow(index, samples=True)

    def wait(self, index: int) -> None:
        assert self.waiting.pop(index).result() == ("output", index, self.given[index])

    def check(self) -> None:
        self.flow.check()
        assert self.flow.in_flight == len(self.waiting)
        if self.deferred is not None:
            assert self.deferred not in self.ranks.sampling


def start(layout: Layout, order: str, depth: int, pick: Pick) -> tuple[Engine, list[Placed]]:
    placed: list[Placed] = []

    class Noted(Dispatcher):
        def settle(self, *args: Any, **named: Any) -> list[Placed]:
            found = Dispatcher.settle(self, *args, **named)
            placed.extend(found)
            return found

    ranks = Ranks(layout, pick)
    dispatcher = Noted(Order(OrderName(order), layout), Drawn(pick))
    flow = Flow(dispatcher, ranks.send, lambda output: {"r": output[1]})
    return Engine(flow, ranks, depth), placed


layouts = st.builds(Layout, st.integers(1, 4), st.integers(1, 3))


@settings(max_examples=400)
@given(layout=layouts, order=st.sampled_from(OrderName), data=st.data())
def test_nothing_is_forgotten_or_sent_twice(
    layout: Layout, order: str, data: st.DataObject
) -> None:
    rng = data.draw(st.randoms(use_true_random=False))
    engine, placed = start(layout, order, data.draw(st.integers(1, 30)), rng.randrange)
    choices = ["submit", "submit", "empty", "defer", "wait", "allow", "ranks"]
    ahead = data.draw(st.sampled_from([0, 2]))  # who goes ahead asks for results in order
    choices += ["ahead"] * ahead
    out_of_order = 0.0 if ahead else 0.3
    for _ in range(data.draw(st.integers(1, 80))):
        room = len(engine.waiting) < engine.depth and engine.deferred is None
        known = [index for index in engine.waiting if index != engine.deferred]
        match rng.choice(choices):
            case "submit" | "empty" as kind if room:
                engine.submit(rng.randint(1, 9) if kind == "submit" else 0, defer=False)
            case "ahead" if room and known:
                engine.submit(1, defer=False, after=rng.choice(known))
            case "defer" if room:
                engine.submit(1, defer=True)
            case "wait" if known:
                engine.wait(rng.choice(known) if rng.random() < out_of_order else min(known))
            case "allow":
                engine.allow_deferred()
            case "ranks":
                engine.ranks.move()
        engine.check()
    engine.allow_deferred()
    for index in sorted(engine.waiting):
        engine.wait(index)
    engine.check()
    sent = engine.ranks.sent
    assert sent == [p.action for p in placed], "sent in another order than decided"
    Schedule.from_order(layout, sent).check()
    assert len(sent) == layout.stages * engine.flow.next_index
    while engine.ranks.move():
        pass
    assert engine.ranks.ran == [list(r) for r in Schedule.from_order(layout, sent).actions]
    assert engine.ranks.sampling == engine.given
    assert engine.ranks.told == engine.awaited, "tokens of another micro-batch"


@settings(max_examples=50)
@given(layout=layouts, data=st.data())
def test_a_failure_on_a_rank_reaches_the_one_who_waits(layout: Layout, data: st.DataObject) -> None:
    rng = data.draw(st.randoms(use_true_random=False))
    engine, _ = start(layout, OrderName.GREEDY, 3, rng.randrange)
    engine.ranks.fails_at = Action(layout.stages - 1, 1)
    for _ in range(3):
        engine.submit(2, defer=False)
    engine.wait(0)
    with pytest.raises(RuntimeError, match="rank failed"):
        engine.wait(1)


def test_a_rank_order_with_a_cycle_is_noticed_by_these_fakes() -> None:
    layout = Layout(2, 2)
    ranks = Ranks(layout, lambda n: n - 1)
    actions = (Action(0, 0), Action(3, 0), Action(2, 0), Action(1, 0))
    reply = Reply(ranks.until)
    message = Actions(actions, (Step(0, 1, (), b""),), {0: (True, None)})
    for rank, inbox in enumerate(ranks.inbox):
        inbox.append((None, message, reply))
        inbox.extend((a, message, reply) for a in actions if layout.owner(a.stage) == rank)
    with pytest.raises(DeadlockError):
        reply.result()


def test_an_action_waits_for_its_sampling_input_and_nothing_else_does() -> None:
    layout = Layout(1, 2)
    engine, _ = start(layout, OrderName.GREEDY, 5, lambda n: 0)
    engine.submit(3, defer=True)
    engine.flow._advance(0)
    assert engine.ranks.sent == [Action(0, 0)]
    engine.allow_deferred()
    engine.wait(0)
    assert engine.ranks.sent == [Action(0, 0), Action(1, 0)]


def test_a_step_is_not_sent_before_its_token_is_known() -> None:
    engine, _ = start(Layout(2, 2), OrderName.GREEDY, 5, lambda n: 0)
    engine.submit(3, defer=False)
    engine.submit(1, defer=False, after=0)
    assert {action.micro_batch for action in engine.ranks.sent} == {0}
    engine.wait(0)
    assert Action(0, 1) in engine.ranks.sent, "the engine looks at the result first"
    assert engine.ranks.told == {0: {}, 1: {"r": 0}}
    engine.wait(1)


def test_no_more_replies_are_outstanding_than_a_queue_holds() -> None:
    engine, _ = start(Layout(1, 2), OrderName.GREEDY, 60, lambda n: 0)
    for _ in range(60):
        engine.submit(5, defer=False)
    assert len(engine.ranks.unread) == Flow.MAX_UNREAD
    for index in range(60):
        engine.wait(index)
