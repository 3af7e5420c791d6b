"""Whether another prompt's chunk would keep requests that decode waiting.

Owns what is under way, as far as that question needs it: how many micro-batches there are, and
whether any of them has prompts. The next token of a request waits for all of them (`core.itl`).
"""

from dataclasses import dataclass, field

from vllm_vpp.core.batch import MicroBatch

__all__ = ["Crowd"]


@dataclass(slots=True)
class Crowd:
    """Tell it what was submitted and what came back. `most`: in flight beside prompts."""

    most: int
    _has_prompts: dict[int, bool] = field(init=False, default_factory=dict)

    def submitted(self, micro_batch: MicroBatch) -> None:
        """Note a micro-batch; an empty one keeps nobody waiting."""
        if micro_batch.chunks:
            self._has_prompts[micro_batch.index] = any(c.tokens > 1 for c in micro_batch.chunks)

    def finished(self, index: int) -> None:
        """Note that the result of a micro-batch has been used."""
        self._has_prompts.pop(index, None)

    @property
    def full(self) -> bool:
        """Whether nothing with a prompt may follow while requests decode."""
        return len(self._has_prompts) >= self.most and any(self._has_prompts.values())
