"""The cost model that the virtual clock starts with: FLOPs of the model that vLLM is about to run.

Owns reading sizes from vLLM's config. Only ratios matter to the order of actions, so times are in
units of the device's matmul rate.
"""

from collections.abc import Sequence

from vllm.config import VllmConfig

from vllm_vpp.core.cost import QuadraticCost, StageCost

__all__ = ["start_cost"]

_FLOPS = 1e12
_ATTENTION_EFFICIENCY = 0.5  # of the matmul rate: measured ratio on CPUs, the usual order on GPUs


def start_cost(config: VllmConfig, layers: Sequence[int]) -> StageCost:
    """Quadratic cost with shares by layer count.

    Per layer and token: 2 (4 h^2 + 8 h^2) FLOPs of matmul, and 4 h per prefix token of attention.
    """
    hidden = config.model_config.get_hidden_size()
    total = sum(layers)
    b = 24 * hidden**2 * total / _FLOPS
    a = 4 * hidden * total / _FLOPS / _ATTENTION_EFFICIENCY
    return StageCost.by_layers(QuadraticCost(c0=256 * b, b=b, a=a), layers)
