"""Sends requests when they are due, while somebody else waits for tokens.

Owns the times of sending. A thread of its own does it, since vLLM's `LLMEngine.step` blocks until
the next token, which can be seconds away; only that thread sends once it runs.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import Event, Thread

__all__ = ["Due", "Sender"]

Due = tuple[float, int | None]
"""Seconds after the start, and below how many unanswered requests it may be sent (None: any)."""


class Sender:
    """Calls `send` with the number of each request, in the order of their times.

    One that is held back by the number unanswered holds back those behind it. Mutable state:
    `sent_ns`, written by the sender alone, and the number answered, by the one who waits alone.
    """

    def __init__(self, due: Sequence[Due], send: Callable[[int], None]) -> None:
        self.sent_ns = [0] * len(due)
        self._due, self._send = due, send
        self._waiting = deque(sorted(range(len(due)), key=lambda i: (due[i][0], i)))
        self._answered = 0
        self._changed = Event()
        self._error: Exception | None = None

    def start(self) -> int:
        """Send what is due at once, the rest from a thread; returns the start in nanoseconds."""
        self._began_ns = time.monotonic_ns()
        self._send_due()
        if self._waiting:
            Thread(target=self._go_on, name="sender", daemon=True).start()
        return self._began_ns

    def answered(self) -> None:
        """Note that one more request has its last token."""
        self._answered += 1
        self._changed.set()

    @property
    def all_answered(self) -> bool:
        """Whether all requests have their last token. Raises what `send` raised in the thread."""
        if self._error is not None:
            raise self._error
        return self._answered == len(self._due)

    def _go_on(self) -> None:
        try:
            while self._waiting:
                self._changed.wait(self._send_due())
                self._changed.clear()
        except Exception as error:  # noqa: BLE001 - raised again by the one who waits
            self._error = error

    def _send_due(self) -> float | None:
        """Send; returns seconds until the next is due, None where it waits for an answer."""
        while self._waiting:
            at, among = self._due[self._waiting[0]]
            delay = at - (time.monotonic_ns() - self._began_ns) * 1e-9
            if delay > 0:
                return delay
            unanswered = len(self._due) - len(self._waiting) - self._answered
            if among is not None and unanswered >= among:
                return None
            index = self._waiting.popleft()
            self.sent_ns[index] = time.monotonic_ns()
            self._send(index)
        return 0.0
