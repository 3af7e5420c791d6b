"""What a suite is: arms, cases and how often each is measured."""

from collections.abc import Callable
from dataclasses import dataclass

from vllm_vpp.bench.engine import Arm, Request

__all__ = ["Plan", "Suite"]

Plan = tuple[list[Arm], dict[str, list[Request]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """`plan` makes arms and cases; `rounds` is how often each arm is measured on each case.

    `alive`: how many engines are alive at once and measured in turn, then the next ones. `timed`:
    chunk times by name that no engine here can show, measured once when the engines have ended.
    """

    name: str
    title: str
    rounds: int
    plan: Callable[[], Plan]
    alive: int = 8
    timed: Callable[[Callable[[str], object]], dict[str, list[float]]] | None = None
