"""Ordering policies: which action a rank runs next.

A policy is pure. It ranks candidates by a key, smallest first, and says whether a rank waits for
its best candidate when that one is not ready yet. `dispatch` asks it in virtual time, on behalf of
the simulator and of the engine alike.

The paper's two orders work in windows: in window n, stage s works on the chunk that entered
`window(s)` windows earlier, one window per transfer and none at a turn. *Vanilla* runs the tail
(the older chunk) first within a window, *async* the head (the newer chunk), so that no rank wants
to send and to receive at the same time.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from vllm_vpp.core.layout import Layout
from vllm_vpp.errors import ConfigError

__all__ = ["Candidate", "Key", "Order", "OrderName"]


class OrderName(StrEnum):
    """Names that a user may give."""

    GREEDY = "greedy"
    ASYNC = "async"
    VANILLA = "vanilla"

    @property
    def waits(self) -> bool:
        """Whether a rank idles for its best candidate rather than run another that is ready."""
        return self is not OrderName.GREEDY


class Candidate(NamedTuple):
    """The next micro-batch of one stage of a rank; `ready` when its input is there."""

    stage: int
    micro_batch: int
    ready: bool


Key = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Order:
    """An ordering policy for one layout."""

    name: OrderName
    layout: Layout

    @classmethod
    def of(cls, name: str, layout: Layout) -> "Order":
        """The policy that a user names."""
        try:
            return cls(OrderName(name), layout)
        except ValueError:
            allowed = ", ".join(OrderName)
            raise ConfigError(
                f"order={name!r}: must be one of {allowed}; choose one of them"
            ) from None

    def window(self, stage: int) -> int:
        """Windows from a chunk's first stage to `stage`: transfers on the way, without turns."""
        return stage - self.layout.sweep(stage)

    def key(self, stage: int, micro_batch: int) -> Key:
        """Sort key, smallest first; total over the actions of a rank."""
        return self.keys()(stage, micro_batch)

    def keys(self) -> Callable[[int, int], Key]:
        """`key` as a function of stage and micro-batch, for those who ask for every decision."""
        windows = tuple(map(self.window, range(self.layout.stages)))
        match self.name:
            case OrderName.GREEDY:
                return lambda stage, micro_batch: (-stage, micro_batch, 0)
            case OrderName.VANILLA:
                return lambda stage, micro_batch: (micro_batch + windows[stage], micro_batch, stage)
            case OrderName.ASYNC:
                return lambda stage, micro_batch: (
                    micro_batch + windows[stage],
                    -micro_batch,
                    stage,
                )

    def preference(self, rank: int) -> tuple[int, ...] | None:
        """Stages of a rank, best first, where that does not depend on the micro-batches; else None.

        `choose` then takes the first stage that is ready, and any that is ready is `settled` (a
        newcomer comes last): the dispatcher saves itself the keys.
        """
        return None if self.name.waits else self.layout.stages_of(rank)[::-1]

    def choose(self, candidates: Iterable[Candidate]) -> Candidate | None:
        """The action to run now, or None to wait for the next event."""
        key = self.keys()
        if self.name.waits:
            best = min(candidates, key=lambda c: key(c.stage, c.micro_batch), default=None)
            return best if best is not None and best.ready else None
        ready = (c for c in candidates if c.ready)
        return min(ready, key=lambda c: key(c.stage, c.micro_batch), default=None)

    def settled(self, rank: int, candidates: Iterable[Candidate], unknown: int) -> bool:
        """Whether `choose` would say the same once micro-batch `unknown` (the next one) is known.

        `candidates` are those of `rank`. A micro-batch yet to come can be ready at once at stage 0
        only; a rank that waits may also want to wait for it at its other stages.
        """
        if not self.name.waits:
            return self.layout.owner(0) != rank or any(c.ready for c in candidates)
        key = self.keys()
        known = [key(c.stage, c.micro_batch) for c in candidates]
        if not known:
            return self.layout.owner(0) != rank
        coming = min(key(stage, unknown) for stage in self.layout.stages_of(rank))
        return min(known) < coming
