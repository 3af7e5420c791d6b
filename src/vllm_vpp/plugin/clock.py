"""How long the device took for each action, without ever waiting for the device.

Owns the difference between devices: on a CPU the host's clock says it; elsewhere events are put
into the stream before and after, and read once they have happened. `torch.Event` is torch's own
face of CUDA's, ROCm's, Intel's and Ascend's events.
"""

import time
from collections import deque
from typing import Any

import torch

from vllm_vpp.plugin.message import Took

__all__ = ["Clock"]


class Clock:
    """`begin`, `end`, and later `take` what is known by then; in the order of the actions."""

    def __init__(self, device: torch.device) -> None:
        self._events = device.type != "cpu"
        self._pending: deque[tuple[int, int, Any, Any]] = deque()

    def begin(self) -> Any:
        """A mark before an action."""
        return self._mark()

    def end(self, began: Any, stage: int, micro_batch: int) -> None:
        """Note that the action that `began` there has been issued."""
        self._pending.append((stage, micro_batch, began, self._mark()))

    def take(self) -> tuple[Took, ...]:
        """Actions that have ended on the device and were not taken yet."""
        done: list[Took] = []
        while self._pending:
            stage, micro_batch, began, ended = self._pending[0]
            if self._events:
                if not ended.query():
                    break
                lasted_ns = round(began.elapsed_time(ended) * 1e6)
            else:
                lasted_ns = ended - began
            self._pending.popleft()
            done.append(Took(stage, micro_batch, lasted_ns))
        return tuple(done)

    def _mark(self) -> Any:
        if not self._events:
            return time.monotonic_ns()
        event = torch.Event(enable_timing=True)  # of the current accelerator
        event.record()
        return event
