"""The law of any shape that an engine would learn of a cost model, for models whose growth bends.

Owns the made-up observations; the fit is `core.online`'s, the same as while serving.
"""

from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.core.cost import RowCost
from vllm_vpp.core.marginal import MarginalCost
from vllm_vpp.core.online import OnlineCost

__all__ = ["learned_shape"]


def learned_shape(cost: RowCost, prompt: int, chunk: int) -> MarginalCost:
    """The law after one prompt in chunks of `chunk` and one in halves of that; at least eight."""
    online = OnlineCost(skip=0)
    for size in (chunk, chunk // 2):
        for prefix in range(0, prompt - size + 1, size):
            batch = MicroBatch(0, (Chunk("r", prefix, size),))
            online.add(batch, sum(cost.times(batch)))
    law = online.marginal()
    assert law is not None, "fewer chunks than a fit needs"
    return law
