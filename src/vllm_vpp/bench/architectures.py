"""What a small model of each architecture consists of: its config, and its weights' scales.

Random weights only test anything if every layer and every earlier token changes the output, so
each weight is drawn at the scale that a trained model has, in its effect: normalised inputs of
unit variance, attention logits with a standard deviation of `ATTENTION` (peaked, not flat),
branches that together outweigh the embedding by `BRANCHES`, and next-token logits with a standard
deviation of `LOGITS`. Names and shapes mirror the Hugging Face checkpoints that vLLM loads.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from vllm_vpp.errors import InputError

__all__ = ["Architecture", "ModelSpec", "Weight", "config_of", "weights_of"]

ATTENTION = 2.0
BRANCHES = 2.0
LOGITS = 2.5
NORM_SPREAD = 0.1
# Gains that undo what shrinks a branch: averaging over the attended tokens, and silu(gate) * up.
ATTENTION_GAIN = 2.0
MLP_GAIN = 1.6
# The latent sizes of DeepSeek-V3, the only ones that vLLM's CPU kernel is compiled for.
KV_LORA_RANK = 512
ROPE_DIM = 64
EXPERT_GROUPS = 4


class Architecture(StrEnum):
    """The families of decoder that matter here, by what a pipeline stage has to hold for them."""

    LLAMA = "llama"  # grouped-query attention, dense
    QWEN3_MOE = "qwen3-moe"  # grouped-query attention, mixture of experts
    DEEPSEEK_V3 = "deepseek-v3"  # latent attention, dense layer first, shared and routed experts
    GEMMA3 = "gemma3"  # sliding-window layers, every third one with full attention


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """All that decides a generated checkpoint; equal specs give equal bytes."""

    architecture: Architecture
    layers: int = 8
    hidden: int = 128
    intermediate: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    vocabulary: int = 1024
    max_positions: int = 32_768
    experts: int = 8
    active_experts: int = 2
    sliding_window: int = 256
    tied_embeddings: bool = False
    dtype: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises InputError for sizes that no such model can have."""
        sizes = {name: size for name, size in asdict(self).items() if isinstance(size, int)}
        for name, size in sizes.items():
            if size < 1 and name not in {"seed", "tied_embeddings"}:
                raise InputError(f"{name} is {size}; it must be at least 1")
        if self.heads % self.kv_heads:
            raise InputError(
                f"heads is {self.heads}, kv_heads {self.kv_heads}; heads must be a multiple"
            )
        if self.active_experts > self.experts:
            raise InputError(
                f"active_experts is {self.active_experts}; there are {self.experts} experts"
            )
        if self.architecture is Architecture.DEEPSEEK_V3 and self.experts % (2 * EXPERT_GROUPS):
            raise InputError(
                f"experts is {self.experts}; deepseek-v3 needs a multiple of {2 * EXPERT_GROUPS}"
            )


class Weight(NamedTuple):
    """One tensor: normally distributed around `mean`."""

    name: str
    shape: tuple[int, ...]
    std: float
    mean: float = 0.0


def config_of(spec: ModelSpec) -> dict[str, Any]:
    """The content of config.json."""
    common = {
        "bos_token_id": 256,
        "eos_token_id": 257,
        "hidden_size": spec.hidden,
        "initializer_range": 0.02,
        "intermediate_size": spec.intermediate,
        "max_position_embeddings": spec.max_positions,
        "num_attention_heads": spec.heads,
        "num_hidden_layers": spec.layers,
        "num_key_value_heads": spec.kv_heads,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": spec.tied_embeddings,
        "torch_dtype": spec.dtype,
        "use_cache": True,
        "vocab_size": spec.vocabulary,
    }
    return common | CONFIGS[spec.architecture](spec)


def weights_of(spec: ModelSpec) -> Iterator[Weight]:
    """Every tensor of the checkpoint, in the order of execution."""
    embedding = 1 / math.sqrt(spec.hidden) if spec.architecture is Architecture.GEMMA3 else 1.0
    yield Weight("model.embed_tokens.weight", (spec.vocabulary, spec.hidden), embedding)
    for index in range(spec.layers):
        for weight in LAYERS[spec.architecture](spec, index):
            yield weight._replace(name=f"model.layers.{index}.{weight.name}")
    # Gemma multiplies by 1 + weight. Tied embeddings bring their own scale to the logits.
    offset = 1.0 if spec.architecture is Architecture.GEMMA3 else 0.0
    scale = LOGITS / (embedding * math.sqrt(spec.hidden)) if spec.tied_embeddings else LOGITS
    yield norm("model.norm", spec.hidden, scale)._replace(mean=scale - offset)
    if not spec.tied_embeddings:
        yield linear("lm_head", spec.vocabulary, spec.hidden)


def linear(name: str, rows: int, columns: int, gain: float = 1.0) -> Weight:
    """A projection that keeps the variance of its input, times gain squared."""
    return Weight(f"{name}.weight", (rows, columns), gain / math.sqrt(columns))


def norm(name: str, size: int, scale: float = 1.0) -> Weight:
    """The weight of an RMS norm whose output has about the given scale."""
    return Weight(f"{name}.weight", (size,), NORM_SPREAD * scale, scale)


def branch_scale(spec: ModelSpec) -> float:
    """Standard deviation of what one of the 2 x layers residual branches adds."""
    return BRANCHES / math.sqrt(2 * spec.layers)


def attention(spec: ModelSpec, *, normed: bool, offset: float = 0.0) -> Iterator[Weight]:
    """Grouped-query attention; with `normed`, query and key norms set the logits' scale."""
    gain = 1.0 if normed else math.sqrt(ATTENTION)
    query, key = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    yield linear("self_attn.q_proj", query, spec.hidden, gain)
    yield linear("self_attn.k_proj", key, spec.hidden, gain)
    yield linear("self_attn.v_proj", key, spec.hidden)
    yield linear("self_attn.o_proj", spec.hidden, query, ATTENTION_GAIN * branch_scale(spec))
    if normed:
        for name in ("self_attn.q_norm", "self_attn.k_norm"):
            weight = norm(name, spec.head_dim, math.sqrt(ATTENTION))
            yield weight._replace(mean=weight.mean - offset)


def mlp(prefix: str, spec: ModelSpec, gain: float = 1.0) -> Iterator[Weight]:
    """A gated feed-forward block whose output has `gain` times a branch's scale."""
    yield linear(f"{prefix}.gate_proj", spec.intermediate, spec.hidden)
    yield linear(f"{prefix}.up_proj", spec.intermediate, spec.hidden)
    down = MLP_GAIN * gain * branch_scale(spec)
    yield linear(f"{prefix}.down_proj", spec.hidden, spec.intermediate, down)


def experts(spec: ModelSpec) -> Iterator[Weight]:
    """A router with clear preferences, and experts whose weighted sum keeps a branch's scale."""
    yield linear("mlp.gate", spec.experts, spec.hidden, gain=2.0)
    for index in range(spec.experts):
        yield from mlp(f"mlp.experts.{index}", spec, gain=math.sqrt(2.0))


def llama_layer(spec: ModelSpec, index: int) -> Iterator[Weight]:
    """One layer of LlamaForCausalLM."""
    del index
    yield norm("input_layernorm", spec.hidden)
    yield from attention(spec, normed=False)
    yield norm("post_attention_layernorm", spec.hidden)
    yield from mlp("mlp", spec)


def qwen3_moe_layer(spec: ModelSpec, index: int) -> Iterator[Weight]:
    """One layer of Qwen3MoeForCausalLM."""
    del index
    yield norm("input_layernorm", spec.hidden)
    yield from attention(spec, normed=True)
    yield norm("post_attention_layernorm", spec.hidden)
    yield from experts(spec)


def gemma3_layer(spec: ModelSpec, index: int) -> Iterator[Weight]:
    """One layer of Gemma3ForCausalLM: norms multiply by 1 + weight, and also close each branch."""
    del index
    yield norm("input_layernorm", spec.hidden)._replace(mean=0.0)
    yield from attention(spec, normed=True, offset=1.0)
    closing = branch_scale(spec)
    for name in ("post_attention_layernorm", "post_feedforward_layernorm"):
        yield norm(name, spec.hidden, closing)._replace(mean=closing - 1.0)
    yield norm("pre_feedforward_layernorm", spec.hidden)._replace(mean=0.0)
    yield from mlp("mlp", spec)


def deepseek_v3_layer(spec: ModelSpec, index: int) -> Iterator[Weight]:
    """One layer of DeepseekV3ForCausalLM: latent attention; the first layer is dense."""
    query_rank = spec.hidden
    gain = math.sqrt(ATTENTION)
    yield norm("input_layernorm", spec.hidden)
    yield linear("self_attn.q_a_proj", query_rank, spec.hidden)
    yield norm("self_attn.q_a_layernorm", query_rank)
    query = spec.heads * (spec.head_dim + ROPE_DIM)
    yield linear("self_attn.q_b_proj", query, query_rank, gain)
    yield linear("self_attn.kv_a_proj_with_mqa", KV_LORA_RANK + ROPE_DIM, spec.hidden, gain)
    yield norm("self_attn.kv_a_layernorm", KV_LORA_RANK)
    yield linear("self_attn.kv_b_proj", 2 * spec.heads * spec.head_dim, KV_LORA_RANK, gain)
    output = ATTENTION_GAIN / gain * branch_scale(spec)
    yield linear("self_attn.o_proj", spec.hidden, spec.heads * spec.head_dim, output)
    yield norm("post_attention_layernorm", spec.hidden)
    if index == 0:
        yield from mlp("mlp", spec)
        return
    yield from experts(spec)
    yield Weight("mlp.gate.e_score_correction_bias", (spec.experts,), 0.05)
    yield from mlp("mlp.shared_experts", spec, gain=0.7)


def llama_config(spec: ModelSpec) -> dict[str, Any]:
    """What config.json of a Llama adds."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "mlp_bias": False,
        "rope_theta": 500_000.0,
    }


def qwen3_moe_config(spec: ModelSpec) -> dict[str, Any]:
    """What config.json of a Qwen3-MoE adds."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "mlp_only_layers": [],
        "moe_intermediate_size": spec.intermediate,
        "norm_topk_prob": True,
        "num_experts": spec.experts,
        "num_experts_per_tok": spec.active_experts,
        "rope_theta": 1_000_000.0,
    }


def gemma3_config(spec: ModelSpec) -> dict[str, Any]:
    """What config.json of a Gemma 3 (text) adds."""
    kinds = ("sliding_attention", "sliding_attention", "full_attention")
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "attention_bias": False,
        "head_dim": spec.head_dim,
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": [kinds[index % len(kinds)] for index in range(spec.layers)],
        "query_pre_attn_scalar": spec.head_dim,
        "rope_local_base_freq": 10_000.0,
        "rope_theta": 1_000_000.0,
        "sliding_window": spec.sliding_window,
    }


def deepseek_v3_config(spec: ModelSpec) -> dict[str, Any]:
    """What config.json of a DeepSeek-V3 adds."""
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "attention_bias": False,
        "first_k_dense_replace": 1,
        "hidden_act": "silu",
        "kv_lora_rank": KV_LORA_RANK,
        "moe_intermediate_size": spec.intermediate,
        "moe_layer_freq": 1,
        "n_group": EXPERT_GROUPS,
        "n_routed_experts": spec.experts,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": spec.active_experts,
        "num_key_value_heads": spec.heads,
        "q_lora_rank": spec.hidden,
        "qk_nope_head_dim": spec.head_dim,
        "qk_rope_head_dim": ROPE_DIM,
        "rope_theta": 10_000.0,
        "routed_scaling_factor": 1.0,
        "scoring_func": "sigmoid",
        "topk_group": EXPERT_GROUPS // 2,
        "topk_method": "noaux_tc",
        "v_head_dim": spec.head_dim,
    }


CONFIGS = {
    Architecture.LLAMA: llama_config,
    Architecture.QWEN3_MOE: qwen3_moe_config,
    Architecture.DEEPSEEK_V3: deepseek_v3_config,
    Architecture.GEMMA3: gemma3_config,
}
LAYERS = {
    Architecture.LLAMA: llama_layer,
    Architecture.QWEN3_MOE: qwen3_moe_layer,
    Architecture.DEEPSEEK_V3: deepseek_v3_layer,
    Architecture.GEMMA3: gemma3_layer,
}
