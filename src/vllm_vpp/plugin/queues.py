"""vLLM's queues between the engine and its ranks, for an engine that looks up while it waits.

Owns the waiting. vLLM's own, for room in the queue to the ranks or for a reply from another
machine, does not see that a rank has died.
"""

import time
from collections.abc import Callable
from typing import Any

__all__ = ["Inbox", "Outbox"]

_LOOK_UP_S = 1.0


class _Patient:
    """Around a vLLM `MessageQueue`; `failed`: whether a rank has died.

    All that is not here is the queue's own.
    """

    def __init__(self, queue: Any, failed: Callable[[], bool]) -> None:
        self._queue, self._failed = queue, failed

    def _retry(self, attempt: Callable[[float], Any], limit_s: float) -> Any:
        """What `attempt(seconds)` returns, which raises TimeoutError and has then done nothing."""
        deadline = time.monotonic() + limit_s
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            try:
                return attempt(min(_LOOK_UP_S, left))
            except TimeoutError:
                if self._failed():
                    raise RuntimeError("Executor failed.") from None
                if left <= _LOOK_UP_S:
                    raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class Outbox(_Patient):
    """To the ranks. `limit_s`: seconds to wait for room, as long as a step may take."""

    def __init__(self, queue: Any, failed: Callable[[], bool], limit_s: float) -> None:
        super().__init__(queue, failed)
        self._limit_s = limit_s

    def enqueue(self, message: Any) -> None:
        """Put a message. Raises RuntimeError when a rank has died, TimeoutError after the limit."""
        try:
            self._retry(lambda seconds: self._queue.enqueue(message, seconds), self._limit_s)
        except TimeoutError:
            text = f"vpp: the ranks have taken no message for {self._limit_s:g} s"
            raise TimeoutError(text) from None


class Inbox(_Patient):
    """From a rank on another machine; on this one vLLM itself ends the wait for one that died."""

    def dequeue(self, timeout: float | None = None) -> Any:
        """Take a message. Raises RuntimeError when a rank has died, TimeoutError after a time."""
        return self._retry(self._queue.dequeue, float("inf") if timeout is None else timeout)
