"""An engine that waits for its ranks, to take a message or to reply, notices that one has died."""

from typing import Any

import pytest

from vllm_vpp.plugin.queues import Inbox, Outbox


class _Queue:
    """Stands in for vLLM's: ready after so many tries, of which none waits."""

    n_reader = 2

    def __init__(self, tries: int) -> None:
        self.tries = tries
        self.messages: list[Any] = []

    def _try(self) -> None:
        self.tries -= 1
        if self.tries >= 0:
            raise TimeoutError

    def enqueue(self, message: Any, timeout: float) -> None:
        self._try()
        self.messages.append(message)

    def dequeue(self, timeout: float) -> str:
        self._try()
        return "reply"


NEVER = 10**9


def test_a_message_is_put_once_when_there_is_room() -> None:
    queue = _Queue(3)
    Outbox(queue, lambda: False, limit_s=60).enqueue("a")
    assert queue.messages == ["a"]


def test_a_reply_is_taken_when_it_is_there() -> None:
    for timeout in (None, 60.0):
        assert Inbox(_Queue(3), lambda: False).dequeue(timeout) == "reply"


def test_a_rank_that_died_ends_the_wait() -> None:
    queue = _Queue(NEVER)
    with pytest.raises(RuntimeError, match="failed"):
        Outbox(queue, lambda: queue.tries < NEVER - 3, limit_s=60).enqueue("a")
    for timeout in (None, 60.0):
        queue = _Queue(NEVER)
        with pytest.raises(RuntimeError, match="failed"):
            Inbox(queue, lambda: queue.tries < NEVER - 3).dequeue(timeout)  # noqa: B023


def test_the_wait_is_as_long_as_a_step_may_take() -> None:
    with pytest.raises(TimeoutError, match=r"no message for 0\.05 s"):
        Outbox(_Queue(NEVER), lambda: False, limit_s=0.05).enqueue("a")
    with pytest.raises(TimeoutError):
        Inbox(_Queue(NEVER), lambda: False).dequeue(0.05)
    assert Inbox(_Queue(0), lambda: False).dequeue(0.0) == "reply"


def test_all_else_is_the_queues() -> None:
    assert Outbox(_Queue(0), lambda: False, limit_s=1).n_reader == 2
