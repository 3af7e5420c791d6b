"""Chunk time against chunk number, for four kinds of attention.

Owns the models and the prompt of the suite `tau`. Engines run on the plain pipeline, where tau_k is
the compute of chunk k over both ranks. On a CPU without matrix units vLLM runs latent attention
only without chunks (`vllm.platforms.cpu`), so there its layers are timed alone.
"""

from collections.abc import Callable

from vllm_vpp.bench.arms import made_arm, random_prompt
from vllm_vpp.bench.dtype import fast_dtype
from vllm_vpp.bench.engine import Request
from vllm_vpp.bench.layer_timing import Bench, time_layers
from vllm_vpp.bench.models import ModelSpec, checkpoint, small
from vllm_vpp.bench.suite import Plan
from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.sim.model import read_model

__all__ = ["LATENT", "latent", "tau"]

LATENT = "latent, layers alone"
_TOKENS, _CHUNK = 16_384, 1024
_LATENT_TOKENS, _LATENT_CHUNK = 8192, 512  # PyTorch's attention on one core is slow


def _models() -> dict[str, ModelSpec]:
    return {
        "dense": small("llama", layers=8, dtype="bfloat16"),
        "mixture of experts": small("qwen3-moe", layers=8, dtype="bfloat16", intermediate=704),
        "sliding window": small("gemma3", layers=12, dtype="bfloat16", sliding_window=1024),
    }


def tau() -> Plan:
    """Grouped-query attention, dense and with experts; windows of 1024 tokens in two of three."""
    arms = [
        made_arm(name, spec, {"layout": "linear"}, _CHUNK, _TOKENS + 16)
        for name, spec in _models().items()
    ]
    return arms, {"": [Request(prompt=random_prompt(_TOKENS, 1))]}


def latent(tell: Callable[[str], object]) -> dict[str, list[float]]:
    """Seconds of each chunk over the layers of a small DeepSeek-V3, on one core."""

    def heard(text: str) -> None:
        tell(f"{LATENT}: {text}")

    heard("timing")
    model = read_model(str(checkpoint(small("deepseek-v3", layers=4))))
    prefixes = range(0, _LATENT_TOKENS, _LATENT_CHUNK)
    bench = Bench(device="cpu", dtype=fast_dtype(), threads=1)
    cost = time_layers(model, bench, [_LATENT_CHUNK], list(prefixes), heard)
    batches = [
        MicroBatch(k, (Chunk("", prefix, _LATENT_CHUNK),)) for k, prefix in enumerate(prefixes)
    ]
    return {LATENT: [sum(cost.times(batch)) for batch in batches]}
