"""The shape of a model, layer by layer, from its Hugging Face config.json.

Owns sizes: widths, heads, experts, which layers are dense, windowed or sparse, how many bytes
weights and KV cache take. Leaves time to `analytic`. Field names are those of transformers; a stage
may start only where `starts` says (a DSA layer without an indexer reuses the indices of an earlier
layer).
"""

from dataclasses import dataclass
from typing import Any

from vllm_vpp.errors import InputError
from vllm_vpp.sim.config_file import ConfigFile

__all__ = ["Attention", "Layer", "Model", "Moe", "read_model"]

_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
_QUANTISED = {"fp8": 1.0, "compressed-tensors": 1.0, "awq": 0.5, "gptq": 0.5, "modelopt": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One layer's attention. `qk`, `v`: dimensions per head of scores and of values.

    kv_lora (0 without latent attention), q_lora, nope, rope: sizes of latent attention. window:
    tokens a query sees. topk: tokens that sparse attention picks, with `index_heads` x `index_dim`
    of indexer where `indexer` is set (else the indices of an earlier layer serve).
    """

    heads: int
    kv_heads: int
    qk: int
    v: int
    kv_lora: int = 0
    q_lora: int = 0
    nope: int = 0
    rope: int = 0
    window: int | None = None
    topk: int | None = None
    index_heads: int = 0
    index_dim: int = 0
    indexer: bool = False

    def weights(self, hidden: int) -> int:
        """Parameters of the projections, indexer included."""
        index = 0
        if self.indexer:
            source = self.q_lora or hidden
            index = source * self.index_heads * self.index_dim + hidden * (
                self.index_dim + self.index_heads
            )
        output = self.heads * self.v * hidden
        if not self.kv_lora:
            return hidden * (self.heads * self.qk + self.kv_heads * (self.qk + self.v)) + output
        query = self.heads * self.qk * (self.q_lora or hidden) + hidden * self.q_lora
        latent = hidden * (self.kv_lora + self.rope)
        return query + latent + self.up_projection() + output + index

    def up_projection(self) -> int:
        """Parameters that turn a latent into keys and values; 0 without latent attention."""
        return self.kv_lora * self.heads * (self.nope + self.v)

    def cache_values(self) -> int:
        """Numbers that the KV cache keeps per token."""
        index = self.index_dim if self.indexer else 0
        if self.kv_lora:
            return self.kv_lora + self.rope + index
        return self.kv_heads * (self.qk + self.v)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """Feed-forward part: `experts` of which `active` work on a token, and `shared` that always do.

    A dense layer has one expert, always active.
    """

    intermediate: int
    experts: int = 1
    active: int = 1
    shared: int = 0

    @property
    def routed(self) -> bool:
        """Whether tokens choose experts."""
        return self.experts > 1

    def weights(self, hidden: int) -> int:
        """Parameters: gate, up and down of every expert, and the router."""
        router = hidden * self.experts if self.routed else 0
        return 3 * hidden * self.intermediate * (self.experts + self.shared) + router

    def active_weights(self, hidden: int) -> int:
        """Parameters that one token meets."""
        router = hidden * self.experts if self.routed else 0
        return 3 * hidden * self.intermediate * (self.active + self.shared) + router


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer."""

    attention: Attention
    mlp: Moe


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder. `weight_bytes`, `cache_bytes`: per parameter and per cached number."""

    name: str
    hidden: int
    vocabulary: int
    layers: tuple[Layer, ...]
    tied: bool = False
    positions: int | None = None
    weight_bytes: float = 2.0
    cache_bytes: float = 2.0

    @property
    def embedding(self) -> int:
        """Parameters of the embedding; the head has as many."""
        return self.hidden * self.vocabulary

    def layer_weights(self, layer: Layer) -> int:
        """Parameters of a layer."""
        return layer.attention.weights(self.hidden) + layer.mlp.weights(self.hidden)

    @property
    def parameters(self) -> int:
        """All parameters, norms left out."""
        ends = self.embedding * (1 if self.tied else 2)
        return ends + sum(self.layer_weights(layer) for layer in self.layers)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token meets: of the embedding, only as head."""
        return self.embedding + sum(
            layer.attention.weights(self.hidden) + layer.mlp.active_weights(self.hidden)
            for layer in self.layers
        )

    @property
    def cache_bytes_per_token(self) -> float:
        """Bytes of KV cache per token over all layers."""
        return self.cache_bytes * sum(layer.attention.cache_values() for layer in self.layers)

    @property
    def boundary_bytes_per_token(self) -> float:
        """Bytes that cross a stage boundary per token: hidden states and residual, bf16."""
        return 2 * self.hidden * 2.0

    @property
    def starts(self) -> frozenset[int]:
        """Layers on which a stage may start."""
        return frozenset(
            i
            for i, layer in enumerate(self.layers)
            if layer.attention.topk is None or layer.attention.indexer
        )


def read_model(name: str, *, weight_bytes: float | None = None) -> Model:
    """The model of a shipped name, a config.json or a folder. Raises InputError, one line."""
    config = ConfigFile.read(name)
    layers = config.count("num_hidden_layers", "n_layer")
    hidden = config.count("hidden_size", "n_embd")
    return Model(
        name=name,
        hidden=hidden,
        vocabulary=config.count("vocab_size"),
        layers=tuple(
            Layer(_attention(config, hidden, i), _mlp(config, hidden, i)) for i in range(layers)
        ),
        tied=bool(config.data.get("tie_word_embeddings", False)),
        positions=config.optional("max_position_embeddings"),
        weight_bytes=_weight_bytes(config) if weight_bytes is None else weight_bytes,
    )


def _weight_bytes(config: ConfigFile) -> float:
    quantised = config.data.get("quantization_config")
    if isinstance(quantised, dict):
        return _QUANTISED.get(str(quantised.get("quant_method")), 1.0)
    kind = str(config.data.get("dtype") or config.data.get("torch_dtype") or "bfloat16")
    return _BYTES.get(kind.removeprefix("torch."), 2.0)


def _attention(config: ConfigFile, hidden: int, layer: int) -> Attention:
    heads = config.count("num_attention_heads", "n_head")
    if config.optional("kv_lora_rank"):
        return _latent_attention(config, heads, layer)
    kv_heads = config.count("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise InputError(
            f"{config.source}: num_key_value_heads={kv_heads}: must divide the heads ({heads});"
            " correct the config"
        )
    dim = config.count("head_dim", default=max(hidden // heads, 1))
    return Attention(heads=heads, kv_heads=kv_heads, qk=dim, v=dim, window=_window(config, layer))


def _latent_attention(config: ConfigFile, heads: int, layer: int) -> Attention:
    nope, rope = config.count("qk_nope_head_dim"), config.count("qk_rope_head_dim")
    topk = config.optional("index_topk")
    return Attention(
        heads=heads,
        kv_heads=heads,
        qk=nope + rope,
        v=config.count("v_head_dim"),
        kv_lora=config.count("kv_lora_rank"),
        q_lora=config.optional("q_lora_rank") or 0,
        nope=nope,
        rope=rope,
        topk=topk,
        index_heads=config.count("index_n_heads") if topk else 0,
        index_dim=config.count("index_head_dim") if topk else 0,
        indexer=topk is not None and _has_indexer(config, layer),
    )


def _has_indexer(config: ConfigFile, layer: int) -> bool:
    """The rules of vLLM's deepseek_v2.py: a list, a pattern, or one layer in so many."""
    kinds: Any = config.data.get("indexer_types")
    if kinds is not None:
        return layer >= len(kinds) or kinds[layer] == "full"
    pattern: Any = config.data.get("index_topk_pattern")
    if pattern is not None:
        return layer >= len(pattern) or pattern[layer] != "S"
    every = config.count("index_topk_freq", default=1)
    offset = config.count("index_skip_topk_offset", default=2, least=0)
    return max(layer - offset + 1, 0) % every == 0


def _window(config: ConfigFile, layer: int) -> int | None:
    """Tokens that a query of this layer sees, or None for all."""
    window = config.optional("sliding_window")
    if window is None or config.data.get("use_sliding_window") is False:
        return None
    kinds: Any = config.data.get("layer_types")
    if kinds is not None:
        slides = layer < len(kinds) and "sliding" in str(kinds[layer])
        return window if slides else None
    every = config.optional("sliding_window_pattern")
    if every is not None:
        return window if (layer + 1) % every else None
    first = config.optional("max_window_layers", least=0)
    return window if first is None or layer >= first else None


def _mlp(config: ConfigFile, hidden: int, layer: int) -> Moe:
    experts = config.optional("n_routed_experts", "num_experts", "num_local_experts", least=0) or 0
    if experts <= 1 or not _is_sparse(config, layer):
        return Moe(intermediate=config.count("intermediate_size", "n_inner", default=4 * hidden))
    active = config.count("num_experts_per_tok", "moe_topk")
    if active > experts:
        raise InputError(
            f"{config.source}: num_experts_per_tok={active}: must be at most the {experts} experts;"
            " correct the config"
        )
    intermediate = config.count("moe_intermediate_size", "intermediate_size")
    shared = config.optional("n_shared_experts", least=0) or 0
    wide = config.optional("shared_expert_intermediate_size", least=0)
    if wide:
        shared = max(1, round(wide / intermediate))
    return Moe(intermediate=intermediate, experts=experts, active=active, shared=shared)


def _is_sparse(config: ConfigFile, layer: int) -> bool:
    """Whether a layer has experts: past the first dense ones, every `decoder_sparse_step`-th."""
    if layer < (config.optional("first_k_dense_replace", least=0) or 0):
        return False
    dense: Any = config.data.get("mlp_only_layers") or ()
    step = config.count("decoder_sparse_step", "moe_layer_freq", default=1)
    return layer not in dense and (layer + 1) % step == 0
