"""Weights that only tests need: LoRA adapters and quantised checkpoints of the generated Llama.

Owns files. What they are worth is not the point: both sides of a comparison read the same ones.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_vpp.bench.architectures import ModelSpec, config_of, weights_of
from vllm_vpp.bench.byte_tokenizer import write_byte_tokenizer
from vllm_vpp.bench.models import draw
from vllm_vpp.bench.safetensors_file import write

RANK = 4
GROUP = 32  # inputs that share a scale, in 4 bits
NIBBLES = (0, 2, 4, 6, 1, 3, 5, 7)  # output of each group of eight that nibble i of a word holds
F32 = NDArray[np.float32]


def adapter(folder: Path, spec: ModelSpec, seed: int) -> str:
    """A LoRA adapter for attention and feed-forward parts; returns its folder.

    Not for the head: on a CPU vLLM itself would add the last adapter's to requests without one.
    """
    heads, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    shapes = {
        "self_attn.q_proj": (spec.hidden, heads),
        "self_attn.v_proj": (spec.hidden, kv),
        "self_attn.o_proj": (heads, spec.hidden),
        "mlp.up_proj": (spec.hidden, spec.intermediate),
        "mlp.down_proj": (spec.intermediate, spec.hidden),
    }
    parts = {f"model.layers.{i}.{n}": s for i in range(spec.layers) for n, s in shapes.items()}
    rng = np.random.default_rng(seed)
    tensors: dict[str, F32] = {}
    for name, (inputs, outs) in parts.items():
        key = f"base_model.model.{name}"
        first = rng.standard_normal((RANK, inputs)) / np.sqrt(inputs)
        tensors[f"{key}.lora_A.weight"] = first.astype(np.float32)
        second = rng.standard_normal((outs, RANK)) * 0.1
        tensors[f"{key}.lora_B.weight"] = second.astype(np.float32)
    folder.mkdir()
    write(folder / "adapter_model.safetensors", tensors, "float32")
    modules = sorted({name.split(".")[-1] for name in parts})
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "target_modules": modules}
    (folder / "adapter_config.json").write_text(json.dumps({**config, "bias": "none"}))
    return str(folder)


def int8_checkpoint(folder: Path, spec: ModelSpec) -> str:
    """Weights in 8 bits with a scale per output, inputs quantised per token while running."""
    numbers = {"num_bits": 8, "type": "int", "symmetric": True}
    scheme = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**numbers, "strategy": "channel", "dynamic": False},
                "input_activations": {**numbers, "strategy": "token", "dynamic": True},
            }
        },
    }
    tensors: dict[str, NDArray[Any]] = {}
    for name, array in drawn(spec).items():
        if not name.endswith("_proj.weight"):
            tensors[name] = array
            continue
        scale = np.abs(array).max(axis=1, keepdims=True) / 127
        tensors[name] = np.rint(array / scale).astype(np.int8)
        tensors[f"{name}_scale"] = scale.astype(np.float32)
    return save(folder, spec, scheme, tensors)


def awq_checkpoint(folder: Path, spec: ModelSpec) -> str:
    """Weights in 4 bits, eight outputs to a word, with a scale and a zero point per group."""
    scheme = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": GROUP,
        "zero_point": True,
        "version": "gemm",
    }
    tensors: dict[str, NDArray[Any]] = {}
    for name, array in drawn(spec).items():
        if not name.endswith("_proj.weight"):
            tensors[name] = array.astype(np.float16)
            continue
        groups = array.T.reshape(-1, GROUP, array.shape[0])
        low, high = groups.min(axis=1, keepdims=True), groups.max(axis=1, keepdims=True)
        scale = (high - low) / 15
        zero = np.clip(np.rint(-low / scale), 0, 15)
        levels = np.clip(np.rint(groups / scale) + zero, 0, 15).reshape(array.T.shape)
        stem = name.removesuffix("weight")
        tensors[f"{stem}qweight"] = words(levels)
        tensors[f"{stem}qzeros"] = words(zero[:, 0])
        tensors[f"{stem}scales"] = scale[:, 0].astype(np.float16)
    return save(folder, spec, scheme, tensors)


def words(levels: F32) -> NDArray[np.int32]:
    """Eight columns of 4 bits each in one word, in the order of AWQ."""
    rows, columns = levels.shape
    parts = levels.astype(np.uint32).reshape(rows, columns // 8, 8)
    packed = np.zeros((rows, columns // 8), dtype=np.uint32)
    for nibble, column in enumerate(NIBBLES):
        packed |= parts[:, :, column] << np.uint32(4 * nibble)
    return packed.view(np.int32)


def drawn(spec: ModelSpec) -> dict[str, F32]:
    return {weight.name: draw(weight, spec.seed) for weight in weights_of(spec)}


def save(
    folder: Path, spec: ModelSpec, scheme: dict[str, Any], tensors: dict[str, NDArray[Any]]
) -> str:
    from safetensors.numpy import save_file

    folder.mkdir()
    config = config_of(spec) | {"quantization_config": scheme}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_byte_tokenizer(folder, spec.max_positions)
    return str(folder)
