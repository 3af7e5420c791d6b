"""What the executor tells the ranks, and what the last stage's rank answers.

Owns the records on the wire; they travel over vLLM's own message queues.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from vllm_vpp.core.batch import Chunk
from vllm_vpp.core.schedule import Action

__all__ = ["Actions", "Reply", "Step", "Took"]


class Took(NamedTuple):
    """An action and its nanoseconds of compute."""

    stage: int
    micro_batch: int
    lasted_ns: int


@dataclass(frozen=True, slots=True)
class Step:
    """A micro-batch as the scheduler made it.

    `scheduler_output` is pickled: each stage loads a copy of its own, since runners keep and extend
    its lists of block ids. `awaits`: requests whose token was not known to the scheduler, with the
    micro-batch that samples it; `sampled`: those tokens, once known. No rank sees a step that still
    awaits any.
    """

    index: int
    tokens: int
    chunks: tuple[Chunk, ...]
    scheduler_output: bytes
    awaits: Mapping[str, int] = field(default_factory=dict)
    sampled: Mapping[str, int] = field(default_factory=dict)

    @property
    def after(self) -> int | None:
        """The newest micro-batch that it still awaits a token of."""
        return max(self.awaits.values(), default=None)

    def knowing(self, sampled: Mapping[str, int]) -> "Step":
        """A copy that awaits these tokens no longer."""
        awaits = {name: index for name, index in self.awaits.items() if name not in sampled}
        return replace(self, awaits=awaits, sampled={**self.sampled, **sampled})


class Actions(NamedTuple):
    """Actions of all ranks in virtual order; a rank runs its own.

    `steps` are those that no rank has seen yet. `sampling` holds, for each last-stage action, the
    grammar output, and whether the micro-batch samples at all.
    """

    actions: tuple[Action, ...]
    steps: tuple[Step, ...]
    sampling: dict[int, tuple[bool, Any]]


class Reply(NamedTuple):
    """`output`: what vLLM's worker returns for the micro-batch.

    `took`: actions of this rank whose durations became known since its last reply.
    """

    output: Any
    took: tuple[Took, ...]
