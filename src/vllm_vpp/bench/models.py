"""Small checkpoints with random weights of realistic scale, made on the spot and kept in a cache.

vLLM's own dummy weights are so small that outputs hardly depend on the prompt, and a pipeline that
mixes up layers passes every comparison. `architectures` says what is drawn; this module draws and
writes it.
"""

import hashlib
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_vpp.bench.architectures import Architecture, ModelSpec, Weight, config_of, weights_of
from vllm_vpp.bench.byte_tokenizer import write_byte_tokenizer
from vllm_vpp.bench.cache import build_once, cache_folder
from vllm_vpp.bench.safetensors_file import write
from vllm_vpp.errors import InputError

__all__ = ["Architecture", "ModelSpec", "checkpoint", "small", "tiny"]

# Part of a checkpoint's name in the cache: raise it when the same spec is to give other bytes.
RECIPE = 1


def tiny(architecture: str, **changes: Any) -> ModelSpec:
    """A model that loads in a second or two, for tests of equality: about a million parameters.

    `changes` are fields of ModelSpec. DeepSeek-V3 is in bfloat16, since its attention has no
    float32 path on a CPU. Raises InputError for an unknown architecture.
    """
    known = {member.value for member in Architecture}
    if architecture not in known:
        raise InputError(f"architecture is {architecture!r}; use one of {', '.join(sorted(known))}")
    member = Architecture(architecture)
    dtype = "bfloat16" if member is Architecture.DEEPSEEK_V3 else "float32"
    return ModelSpec(**({"architecture": member, "dtype": dtype} | changes))


def small(architecture: str, **changes: Any) -> ModelSpec:
    """A model to time a pipeline on a CPU with: computing dwarfs the engine's own overhead."""
    sizes = {"hidden": 512, "intermediate": 1408, "heads": 8, "kv_heads": 4, "head_dim": 64}
    return tiny(architecture, **(sizes | {"max_positions": 65_536} | changes))


def checkpoint(spec: ModelSpec, cache: Path | None = None) -> Path:
    """The folder of a Hugging Face checkpoint of `spec`, written if it is not in the cache."""
    digest = hashlib.sha256(json.dumps([RECIPE, asdict(spec)], sort_keys=True).encode()).hexdigest()
    name = f"{spec.architecture}-{spec.layers}x{spec.hidden}-{digest[:12]}"
    return build_once((cache or cache_folder()) / "models" / name, partial(write_checkpoint, spec))


def write_checkpoint(spec: ModelSpec, folder: Path) -> None:
    """Fills an empty folder with config, weights and a byte-level tokenizer."""
    (folder / "config.json").write_text(json.dumps(config_of(spec), indent=2) + "\n")
    tensors = {weight.name: draw(weight, spec.seed) for weight in weights_of(spec)}
    write(folder / "model.safetensors", tensors, spec.dtype)
    write_byte_tokenizer(folder, spec.max_positions)


def draw(weight: Weight, seed: int) -> NDArray[np.float32]:
    """Values that depend on the seed and the weight's name alone, not on what was drawn before."""
    digest = hashlib.sha256(f"{seed}:{weight.name}".encode()).digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))
    values = generator.standard_normal(weight.shape, dtype=np.float32)
    return values * np.float32(weight.std) + np.float32(weight.mean)
