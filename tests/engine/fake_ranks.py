"""Ranks that compute nothing, for tests of what decides and hands out their actions.

They do what `plugin.worker` does: take messages first in, first out, run their own actions in the
order received, and stand still until an action's input is there. Which rank moves next is drawn.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from vllm_vpp.core.layout import Layout
from vllm_vpp.core.schedule import Action
from vllm_vpp.plugin.message import Actions, Step

QUEUE = 10  # replies that vLLM's message queue holds
Pick = Callable[[int], int]  # n -> one of 0 .. n-1


class DeadlockError(AssertionError):
    pass


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
        self.told: dict[int, dict[str, int]] = {}
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
        assert not any(step.awaits for step in message.steps), "sent before its tokens are known"
        self.told.update({step.index: dict(step.sampled) for step in message.steps})
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
        output = self.compute(action.stage, step)
        if action.stage < self.layout.stages - 1:
            self.ready.add(Action(action.stage + 1, action.micro_batch))
            return
        assert reply is not None
        if action == self.fails_at:
            reply.set_exception(RuntimeError("rank failed"))
        else:
            reply.set_result(output)

    def compute(self, stage: int, step: Step) -> Any:
        """What the stage returns; that of the last stage is the micro-batch's output."""
        return None if stage < self.layout.stages - 1 else self.answer(step)

    def answer(self, step: Step) -> Any:
        """Output of the last stage."""
        return ("output", step.index, self.sampling[step.index])
