"""Durations of actions, on a device whose events come late."""

import time
from typing import Any

import pytest
import torch

from vllm_vpp.plugin.clock import Clock
from vllm_vpp.plugin.message import Took

pytestmark = pytest.mark.vllm


def test_on_a_cpu_the_host_knows_at_once() -> None:
    host = Clock(torch.device("cpu"))
    began = host.begin()
    time.sleep(0.01)
    host.end(began, 3, 7)
    (took,) = host.take()
    assert (took.stage, took.micro_batch) == (3, 7)
    assert 10e6 <= took.lasted_ns < 1e9
    assert host.take() == ()


class Event:
    """An event of a stream that is `behind` the host."""

    now = 0.0
    done = 0.0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.at = 0.0

    def record(self) -> None:
        Event.now += 1.0
        self.at = Event.now

    def query(self) -> bool:
        return self.at <= Event.done

    def elapsed_time(self, other: "Event") -> float:
        return other.at - self.at  # milliseconds


def test_on_a_device_nobody_waits_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = Event
    monkeypatch.setattr(torch, "Event", fake)
    device = Clock(torch.device("cuda"))
    for micro_batch in range(3):
        device.end(device.begin(), 0, micro_batch)
    assert device.take() == ()
    Event.done = 4.0
    assert device.take() == (Took(0, 0, 1_000_000), Took(0, 1, 1_000_000))
    Event.done = 9.0
    assert device.take() == (Took(0, 2, 1_000_000),)
