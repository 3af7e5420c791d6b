"""`Flow` and its dispatcher against fake ranks, in every legal order of calls.

The fake ranks do what `plugin.worker` does: take messages first in, first out, run their own
actions in the order received, and stand still until an action's input is there. Which rank moves
next is drawn at random.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest
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
QUEUE = 10  # replies that vLLM's message queue holds
Pick = Callable[[int], int]  # n -> one of 0 .. n-1


class DeadlockError(AssertionError):
    pass


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


class Reply(Future[Any]):
    """Asking for a result lets the ranks run until it is there."""

    def __init__(self, run: Callable[["Reply"], None]) -> None:
        super().__init__()
        self._run = run

    def result(self, timeout: float | None = None) -> Any:
        self._run(self)
        return super().result(0)


class Ranks:
    """All ranks; `inbox[r]` holds (action or None, message, reply), None once per message."""

    def __init__(self, layout: Layout, pick: Pick) -> None:
        self.layout, self.pick = layout, pick
        self.inbox: list[deque[tuple[Action | None, Actions, Reply | None]]] = [
            deque() for _ in range(layout.ranks)
        ]
        self.steps: dict[int, deque[Step]] = {s: deque() for s in range(layout.stages)}
        self.ready: set[Action] = set()
        self.sent: list[Action] = []
        self.ran: list[list[Action]] = [[] for _ in range(layout.ranks)]
        self.sampling: dict[int, tuple[bool, Any]] = {}
        self.fails_at: Action | None = None
        self.unread: list[Reply] = []

    def send(self, message: Actions, replies: bool) -> Future[Any] | None:
        last = self.layout.stages - 1
        finished = [a.micro_batch for a in message.actions if a.stage == last]
        assert replies == bool(finished)
        assert finished == list(message.sampling), "sampling input of another micro-batch"
        assert not finished or message.actions[-1].stage == last, "a reply that waits for more"
        assert not set(message.sampling) & set(self.sampling), "sampled twice"
        self.sampling.update(message.sampling)
        self.sent += message.actions
        reply = Reply(self.until) if replies else None
        if reply is not None:
            self.unread.append(reply)
            assert len(self.unread) <= QUEUE, "the queue of replies is full: a rank would hang"
        for rank, inbox in enumerate(self.inbox):
            inbox.append((None, message, reply))
            inbox.extend(
                (a, message, reply) for a in message.actions if self.layout.owner(a.stage) == rank
            )
        return reply

    def until(self, reply: Reply) -> None:
        if reply in self.unread:  # replies are read in order, as vLLM's executor does
            del self.unread[: self.unread.index(reply) + 1]
        while not reply.done():
            if not self.move():
                raise DeadlockError(
                    f"ranks stand still before {[list(box)[:1] for box in self.inbox]}"
                )

    def move(self) -> bool:
        """Let one rank that can move take one item."""
        able = [r for r, inbox in enumerate(self.inbox) if inbox and self.can_run(inbox[0][0])]
        if not able:
            return False
        rank = able[self.pick(len(able))]
        action, message, reply = self.inbox[rank].popleft()
        if action is None:
            for stage in self.layout.stages_of(rank):
                self.steps[stage].extend(message.steps)
            return True
        self.run(rank, action, reply)
        return True

    def can_run(self, action: Action | None) -> bool:
        return action is None or action.stage == 0 or action in self.ready

    def run(self, rank: int, action: Action, reply: Reply | None) -> None:
        step = self.steps[action.stage].popleft()
        assert step.index == action.micro_batch, "a stage was handed another micro-batch"
        self.ran[rank].append(action)
        if action.stage < self.layout.stages - 1:
            self.ready.add(Action(action.stage + 1, action.micro_batch))
            return
        assert reply is not None
        if action == self.fails_at:
            reply.set_exception(RuntimeError("rank failed"))
        else:
            reply.set_result(("output", action.micro_batch, self.sampling[action.micro_batch]))


@dataclass
class Engine:
    """What vLLM's engine core may do: see `EngineCore.step_with_batch_queue`."""

    flow: Flow
    ranks: Ranks
    depth: int
    waiting: dict[int, LazyResult] = field(default_factory=dict)
    given: dict[int, tuple[bool, Any]] = field(default_factory=dict)
    deferred: int | None = None

    def submit(self, tokens: int, *, defer: bool) -> None:
        index = self.flow.next_index
        chunks = (Chunk("r", 0, tokens),) if tokens else ()
        self.waiting[index] = self.flow.submit(Step(index, tokens, chunks, b""))
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
    flow = Flow(Noted(Order(OrderName(order), layout), Drawn(pick)), ranks.send)
    return Engine(flow, ranks, depth), placed


layouts = st.builds(Layout, st.integers(1, 4), st.integers(1, 3))


@settings(deadline=None, max_examples=400)
@given(layout=layouts, order=st.sampled_from(OrderName), data=st.data())
def test_nothing_is_forgotten_or_sent_twice(
    layout: Layout, order: str, data: st.DataObject
) -> None:
    rng = data.draw(st.randoms(use_true_random=False))
    engine, placed = start(layout, order, data.draw(st.integers(1, 30)), rng.randrange)
    for _ in range(data.draw(st.integers(1, 80))):
        room = len(engine.waiting) < engine.depth and engine.deferred is None
        known = [index for index in engine.waiting if index != engine.deferred]
        match rng.choice(["submit", "submit", "empty", "defer", "wait", "allow", "ranks"]):
            case "submit" if room:
                engine.submit(rng.randint(1, 9), defer=False)
            case "empty" if room:
                engine.submit(0, defer=False)
            case "defer" if room:
                engine.submit(1, defer=True)
            case "wait" if known:
                engine.wait(min(known) if rng.random() < 0.7 else rng.choice(known))
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


@settings(deadline=None, max_examples=50)
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


def test_no_more_replies_are_outstanding_than_a_queue_holds() -> None:
    engine, _ = start(Layout(1, 2), OrderName.GREEDY, 60, lambda n: 0)
    for _ in range(60):
        engine.submit(5, defer=False)
    assert len(engine.ranks.unread) == Flow.MAX_UNREAD
    for index in range(60):
        engine.wait(index)
