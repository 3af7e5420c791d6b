"""Micro-batches on their way: from the scheduler's output to settled actions to a result.

Owns the bookkeeping between the engine and the ranks, and the moment when an action is sent: when
its place in the order can no longer change, at the latest when the engine waits for a result that
needs it. A step that continues with tokens not sampled yet is sent once they are. Knows nothing of
vLLM, so that tests drive it with fake ranks.
"""

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from vllm_vpp.core.batch import MicroBatch
from vllm_vpp.core.dispatch import Dispatcher, Placed
from vllm_vpp.core.schedule import Action
from vllm_vpp.plugin.message import Actions, Step

__all__ = ["Flow", "LazyResult"]

Send = Callable[[Actions, bool], "Future[Any] | None"]
TokensOf = Callable[[Any], Mapping[str, int]]


class LazyResult(Future[Any]):
    """Result of a micro-batch; asking for it commits whatever has to run first."""

    def __init__(self, flow: "Flow", index: int) -> None:
        super().__init__()
        self._flow, self._index = flow, index

    def result(self, timeout: float | None = None) -> Any:
        """Block until the last stage has replied; raises what a rank raised."""
        if not self.done():
            try:
                self.set_result(self._flow.wait(self._index))
            except Exception as error:  # noqa: BLE001 - kept in the future, which raises it
                self.set_exception(error)
        return super().result(timeout)


class Flow:
    """`send(actions, replies)` hands actions to all ranks; `replies`: the last stage is among them.

    `tokens_of`: tokens by request, from the result of a micro-batch that sampled.

    Invariants: results come in order; an action is sent once, after all that precede it in virtual
    order; a last-stage action is not sent before its sampling input is known, nor a first-stage
    action before its tokens are; at most `MAX_UNREAD` replies are not read yet. vLLM's queues hold
    ten messages: a rank that cannot put down its reply reads no more actions, and an engine that
    cannot put down its actions reads no more replies.
    """

    MAX_UNREAD = 8

    def __init__(self, dispatcher: Dispatcher, send: Send, tokens_of: TokensOf = dict) -> None:
        self.dispatcher = dispatcher
        self._send, self._tokens_of = send, tokens_of
        self._last = dispatcher.layout.stages - 1
        self._unsent: deque[Placed] = deque()
        self._steps: dict[int, Step] = {}
        self._sampling: dict[int, tuple[bool, Any]] = {}
        self._replies: dict[int, Future[Any]] = {}
        self._in_flight: set[int] = set()
        self._unread: deque[Future[Any]] = deque()

    @property
    def in_flight(self) -> int:
        """Micro-batches submitted whose result has not been used."""
        return len(self._in_flight)

    @property
    def next_index(self) -> int:
        """Index of the next micro-batch."""
        return self.dispatcher.submitted

    def submit(self, step: Step) -> LazyResult:
        """Add a micro-batch and send what is settled."""
        self.dispatcher.submit(MicroBatch(step.index, step.chunks), after=step.after)
        self._steps[step.index] = step
        self._in_flight.add(step.index)
        self._advance(None)
        return LazyResult(self, step.index)

    def allow_sampling(self, index: int, *, samples: bool, grammar: Any = None) -> None:
        """The last stage of `index` may run; `samples` is False where there is only bookkeeping."""
        self._sampling[index] = (samples, grammar)
        self._advance(None)

    def wait(self, index: int) -> Any:
        """Commit what `index` needs and what surely follows, and block for its result.

        Steps that await its tokens go out before the engine has looked at them. A step awaits older
        ones only: whoever asks for results in order never asks for one that is held up.
        """
        self._advance(index)
        reply = self._replies.pop(index)
        self._in_flight.discard(index)
        result = reply.result()
        self.dispatcher.retire(index)
        if self._pass_on(index, result):
            self._advance(None)
        return result

    def _pass_on(self, index: int, result: Any) -> bool:
        """Give the tokens of a result to the steps that await them; whether there are any."""
        waiting = [step for step in self._steps.values() if index in step.awaits.values()]
        if not waiting:
            return False
        tokens = self._tokens_of(result)
        for step in waiting:
            mine = {name: tokens[name] for name, sampler in step.awaits.items() if sampler == index}
            self._steps[step.index] = step.knowing(mine)
        return True

    def _advance(self, awaited: int | None) -> None:
        self._unsent.extend(self.dispatcher.settle(awaited))
        batch: list[Action] = []
        while self._unsent:
            action = self._unsent[0].action
            is_last = action.stage == self._last
            if is_last and action.micro_batch not in self._sampling:
                break
            if action.stage == 0 and self._steps[action.micro_batch].awaits:
                break
            batch.append(self._unsent.popleft().action)
            if is_last:
                self._dispatch(batch, action.micro_batch)
                batch = []
        if batch:
            self._dispatch(batch, None)

    def _dispatch(self, actions: list[Action], finished: int | None) -> None:
        steps = tuple(self._steps.pop(a.micro_batch) for a in actions if a.stage == 0)
        sampling = {} if finished is None else {finished: self._sampling.pop(finished)}
        if finished is not None:
            self._read_replies()
        reply = self._send(Actions(tuple(actions), steps, sampling), finished is not None)
        if finished is not None:
            assert reply is not None
            self._replies[finished] = reply
            self._unread.append(reply)

    def _read_replies(self) -> None:
        """Make room for one more; all that the oldest needs has been sent, so it comes."""
        while self._unread and (self._unread[0].done() or len(self._unread) == self.MAX_UNREAD):
            with suppress(Exception):  # raised again for the one who waits
                self._unread.popleft().result()

    def check(self) -> None:
        """Assert the invariants."""
        self.dispatcher.check()
        assert set(self._replies) <= self._in_flight
        assert all(index in self._in_flight for index in self._steps)
        awaited = {index for step in self._steps.values() for index in step.awaits.values()}
        assert awaited <= self._in_flight, "tokens of a result that has been used already"
