"""The models and prompts that suites share, as arms of a comparison."""

import random
from dataclasses import replace
from typing import Any

from vllm_vpp.bench.document import document
from vllm_vpp.bench.dtype import fast_dtype
from vllm_vpp.bench.engine import Arm
from vllm_vpp.bench.models import ModelSpec, checkpoint, small
from vllm_vpp.bench.smollm2 import long_context, smollm2

__all__ = [
    "llama_arm",
    "llama_cost",
    "made_arm",
    "moe_arm",
    "random_prompt",
    "smollm2_arm",
    "text",
    "with_kv_cache",
]

_LLAMA_LAYERS = 8
_MOE_KV_BYTES = 1 << 28  # per rank, more than 32K tokens
# The small Llama on two cores as `vllm-vpp calibrate` finds it, with AVX512_BF16 and with AVX2.
_LLAMA_COST = {
    "bfloat16": {"c0": 0.0484, "b": 1.0448e-4, "a": 8.646e-8},
    "float32": {"c0": 0.0175, "b": 6.658e-4, "a": 4.782e-7},
}


def smollm2_arm(name: str, chunk: int, tokens: int, vpp: dict[str, Any]) -> Arm:
    """SmolLM2-135M on two ranks, for prompts of up to `tokens`."""
    length = tokens + 32
    return Arm(
        name=name,
        model=str(smollm2()),
        ranks=2,
        chunk=chunk,
        max_model_len=length,
        vpp=vpp,
        options={"dtype": fast_dtype(), "hf_overrides": long_context(length)},
    )


def llama_cost(layers: int = _LLAMA_LAYERS) -> dict[str, Any]:
    """Law of the small Llama in the format that is used here; actions cost the same on fewer."""
    law = _LLAMA_COST[fast_dtype()]
    return law | {name: law[name] * layers / _LLAMA_LAYERS for name in ("b", "a")}


def llama_arm(name: str, vpp: dict[str, Any], *, chunk: int = 2048, length: int = 32_800) -> Arm:
    """A Llama of eight layers with random weights on two ranks."""
    spec = small("llama", layers=_LLAMA_LAYERS, dtype="bfloat16")
    return made_arm(name, spec, vpp, chunk, length)


def made_arm(name: str, spec: ModelSpec, vpp: dict[str, Any], chunk: int, length: int) -> Arm:
    """A model with random weights on two ranks."""
    return Arm(
        name=name,
        model=str(checkpoint(spec)),
        ranks=2,
        chunk=chunk,
        max_model_len=length,
        vpp=vpp,
        options={"dtype": fast_dtype()},
    )


def moe_arm(
    name: str, vpp: dict[str, Any], *, chunk: int, length: int = 8032, experts: int = 192
) -> Arm:
    """A mixture of experts where a chunk has a fixed cost, as on accelerators.

    One expert is active per token, so that small chunks read nearly as many weights as large ones,
    for less work. Four engines of 192 experts in float32 fit into 24 GiB.
    """
    spec = small(
        "qwen3-moe", layers=4, dtype="bfloat16", experts=experts, active_experts=1, intermediate=512
    )
    return with_kv_cache(made_arm(name, spec, vpp, chunk, length), _MOE_KV_BYTES)


def with_kv_cache(arm: Arm, size: int) -> Arm:
    """The arm with so many bytes of KV cache per rank, where many engines are alive at once."""
    return replace(arm, options=arm.options | {"kv_cache_memory_bytes": size})


def text(tokens: int) -> list[int]:
    """A prompt of real text for SmolLM2."""
    from transformers import AutoTokenizer

    return document(AutoTokenizer.from_pretrained(smollm2()), tokens)


def random_prompt(tokens: int, seed: int) -> list[int]:
    """A prompt for models with random weights."""
    rng = random.Random(seed)
    return [rng.randrange(1000) for _ in range(tokens)]
