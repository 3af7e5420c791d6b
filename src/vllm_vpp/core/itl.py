"""How large chunks may be while other requests decode.

Owns the largest chunk with which a decode step comes back within a target. A step that enters a
full pipeline has all others in flight before it: on P balanced ranks a micro-batch of T whole-model
seconds ends every T / P, and with D in flight a step takes D T / P (Little's law). Transfers and
dispatch are not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_vpp.core.batch import MicroBatch
from vllm_vpp.core.chunking import Policy, View, next_chunk
from vllm_vpp.core.chunking.carried import carried
from vllm_vpp.core.cost import Law

__all__ = ["ItlBound"]

_MANY = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ItlBound:
    """`target`: seconds from one token of a request to its next. `scale`: of the law's seconds."""

    target: float
    law: Law
    ranks: int
    in_flight: int
    scale: float = 1.0

    def seconds(self, micro_batch: MicroBatch) -> float:
        """D T / P: how long it takes behind others as large."""
        return self.law.seconds(micro_batch) * self.scale * self.in_flight / self.ranks

    def most(self, prefix: int, block: int, decodes: Sequence[int] = ()) -> int:
        """Tokens of a prompt after `prefix` tokens, in a step with decodes after so many each.

        Whole blocks, and one at least, whatever it takes: a prompt must go on.
        """
        law = self.law
        room = self.target * self.ranks / (self.in_flight * self.scale)
        spent = law.c0 + law.chunk_seconds(0, prefix)
        spent += sum(law.chunk_seconds(1, computed) for computed in decodes)
        tokens = int(min(law.tokens_within(room - spent, prefix), _MANY))
        return max(tokens // block * block, block)

    def chunks(self, policy: Policy, length: int, *, limit: int, block: int) -> tuple[int, ...]:
        """Chunks of a whole prompt that keep to the target beside one request that decodes."""
        policy = carried(policy) or policy
        sizes: list[int] = []
        at = 0
        while at < length:
            most = min(self.most(at, block, (at,)), limit)
            sizes.append(next_chunk(policy, View(at, length, most, block=block)))
            at += sizes[-1]
        return tuple(sizes)
