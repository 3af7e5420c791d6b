"""The cost model that the virtual clock starts with: FLOPs of the model that vLLM is about to run.

Owns reading sizes from vLLM's config. Only ratios matter to the order of actions, so times are
those of a device of `FLOPS` FLOP/s.
"""

from vllm.config import VllmConfig

from vllm_vpp.core.cost import QuadraticCost

__all__ = ["FLOPS", "flops_cost"]

FLOPS = 1e12

_ATTENTION_EFFICIENCY = 0.5  # of the matmul rate: measured ratio on CPUs, the usual order on GPUs


def flops_cost(config: VllmConfig) -> QuadraticCost:
    """Whole-model cost of a chunk.

    Per layer and token: 2 (4 h^2 + 8 h^2) FLOPs of matmul, and 4 h per prefix token of attention.
    """
    hidden = config.model_config.get_hidden_size()
    layers = config.model_config.get_total_num_hidden_layers()
    b = 24 * hidden**2 * layers / FLOPS
    a = 4 * hidden * layers / FLOPS / _ATTENTION_EFFICIENCY
    return QuadraticCost(c0=256 * b, b=b, a=a)
