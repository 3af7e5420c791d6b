"""Asks the planner (`vllm_vpp.auto`) in a process of its own.

Owns the process and the question's sizes that come from vLLM's config. Planning takes a second or
two of one core; at start-up it is waited for, while serving its answer is taken when it is there.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from vllm_vpp.errors import VPPError

__all__ = ["Planning", "PlanningError", "expected_lengths"]

_SHORTEST = 1024
_TIMEOUT = 120.0


class PlanningError(VPPError, RuntimeError):
    """The planner gave no answer; the message is its last line."""


def expected_lengths(longest: int) -> list[int]:
    """Powers of two from 1024 up to the longest prompt, and that one."""
    lengths = [_SHORTEST << k for k in range(32) if _SHORTEST << k < longest]
    return [*lengths, longest]


class Planning:
    """A question on its way."""

    def __init__(self, question: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "vllm_vpp.auto"],  # nothing from the working directory
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question))
        self._process.stdin.close()
        self._process.stdin = None

        self._until = time.monotonic() + _TIMEOUT

    @property
    def done(self) -> bool:
        """Whether `answer` returns, or raises, at once."""
        return self._process.poll() is not None or time.monotonic() > self._until

    def answer(self) -> dict[str, Any]:
        """The answer (`vllm_vpp.auto.Answer`). Blocks. Raises PlanningError."""
        left = max(self._until - time.monotonic(), 0.0)
        try:
            output, errors = self._process.communicate(timeout=left)
        except subprocess.TimeoutExpired:
            self.cancel()
            raise PlanningError(f"planner: no answer after {_TIMEOUT:.0f} s") from None
        if self._process.returncode:
            lines: Sequence[str] = errors.strip().splitlines() or ["no message"]
            raise PlanningError(f"planner: {lines[-1]}")
        answer: dict[str, Any] = json.loads(output)
        return answer

    def cancel(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
