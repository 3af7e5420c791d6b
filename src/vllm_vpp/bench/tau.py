"""Chunk time against chunk number, for four kinds of attention.

Owns the models and the prompt of the suite `tau`. All run on the plain pipeline, where tau_k is the
compute of chunk k over both ranks.
"""

from vllm_vpp.bench.arms import random_prompt
from vllm_vpp.bench.engine import Arm, Request
from vllm_vpp.bench.models import ModelSpec, checkpoint, small
from vllm_vpp.bench.suite import Plan

__all__ = ["tau"]

_TOKENS, _CHUNK = 16_384, 1024


def _models() -> dict[str, ModelSpec]:
    return {
        "dense": small("llama", layers=8, dtype="bfloat16"),
        "mixture of experts": small("qwen3-moe", layers=8, dtype="bfloat16", intermediate=704),
        "latent": small("deepseek-v3", layers=4),
        "sliding window": small("gemma3", layers=12, dtype="bfloat16", sliding_window=1024),
    }


def tau() -> Plan:
    """Grouped-query attention, dense and with experts; latent attention; windows of 1024 tokens."""
    arms = [
        Arm(
            name=name,
            model=str(checkpoint(spec)),
            ranks=2,
            chunk=_CHUNK,
            max_model_len=_TOKENS + 16,
            vpp={"layout": "linear"},
            options={"dtype": "bfloat16"},
        )
        for name, spec in _models().items()
    ]
    return arms, {"": [Request(prompt=random_prompt(_TOKENS, 1))]}
