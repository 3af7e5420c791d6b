"""Requests are sent when due, also while the one who waits is blocked."""

import time
from collections.abc import Callable

import pytest

from vllm_vpp.bench.sender import Sender


def wait_until(condition: Callable[[], object], limit_s: float = 5.0) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


def test_what_is_due_at_once_is_sent_at_once_in_order() -> None:
    sent: list[int] = []
    Sender([(0.0, None)] * 5, sent.append).start()
    assert sent == [0, 1, 2, 3, 4]


def test_others_follow_at_their_times_while_nobody_calls() -> None:
    sent: list[int] = []
    sender = Sender([(0.2, None), (0.0, None), (0.1, None)], sent.append)
    began = sender.start()
    assert sent[:1] == [1]
    wait_until(lambda: len(sent) == 3)
    assert sent == [1, 2, 0]
    late = [(ns - began) * 1e-9 - at for ns, at in zip(sender.sent_ns, (0.2, 0, 0.1), strict=True)]
    assert all(0 <= seconds < 0.5 for seconds in late), late


def test_a_client_waits_for_an_answer_before_it_sends_again() -> None:
    sent: list[int] = []
    sender = Sender([(0.0, 2)] * 5, sent.append)
    sender.start()
    assert sent == [0, 1]
    for answered in range(1, 4):
        sender.answered()
        wait_until(lambda: len(sent) >= 2 + answered)  # noqa: B023 - called before the next
        time.sleep(0.02)
        assert len(sent) == 2 + answered
    assert not sender.all_answered
    sender.answered()
    sender.answered()
    assert sender.all_answered


def test_what_fails_in_the_thread_reaches_the_one_who_waits() -> None:
    def send(index: int) -> None:
        if index:
            raise ValueError("too long")

    sender = Sender([(0.0, None), (0.02, None)], send)
    sender.start()
    with pytest.raises(ValueError, match="too long"):
        wait_until(lambda: sender.all_answered)
