"""How many model layers each stage gets, for a model that vLLM is about to load.

Owns reading the model's config and the user's VLLM_PP_LAYER_PARTITION. The search for the best
split is `core.split`; vLLM's own `get_pp_indices` applies the result.
"""

import os

from vllm.config import VllmConfig

from vllm_vpp.core.layout import Layout
from vllm_vpp.core.split import balanced_split
from vllm_vpp.errors import ConfigError, UnsupportedError
from vllm_vpp.plugin.settings import AUTO, Settings

__all__ = ["ENV", "layers_per_stage"]

ENV = "VLLM_PP_LAYER_PARTITION"


def layers_per_stage(config: VllmConfig, layout: Layout, settings: Settings) -> tuple[int, ...]:
    """Layers of each stage, in stage order.

    The user's list (`split`, else VLLM_PP_LAYER_PARTITION) wins if it is possible; else ranks are
    balanced, the head counted at the size of a full micro-batch.
    """
    total = config.model_config.get_total_num_hidden_layers()
    if total < layout.stages:
        raise ConfigError(
            f"layout {layout.name} on {layout.ranks} ranks has {layout.stages} stages: the model "
            f"has only {total} layers, one per stage is the least; use fewer ranks or sweeps"
        )
    starts = _allowed_starts(config, total)
    given = settings.split if settings.split != AUTO else _from_environment(layout)
    if given is not None:
        split = tuple(given)
        _check(split, layout, total)
    else:
        split = balanced_split(layout, total, last_cost=_head_cost(config), starts=starts)
    _check_starts(split, starts)
    return split


def _from_environment(layout: Layout) -> list[int] | None:
    text = os.environ.get(ENV)
    if not text:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"{ENV}={text!r}: must be {layout.stages} whole numbers separated by commas; "
            "correct or unset it"
        ) from None


def _check(split: tuple[int, ...], layout: Layout, total: int) -> None:
    if len(split) != layout.stages or sum(split) != total or min(split) < 1:
        raise ConfigError(
            f"layers per stage {','.join(map(str, split))}: must be {layout.stages} numbers of at "
            f"least 1 (one per stage of layout {layout.name}) that sum to {total}; correct them or "
            "leave them out"
        )


def _head_cost(config: VllmConfig) -> float:
    """Cost of norm and head in units of a layer, for one full micro-batch of prefill.

    The head runs on the last token of each prompt chunk only: V h multiplications against about
    12 h^2 per token and layer (4 h^2 attention, 8 h^2 feed-forward).
    """
    model = config.model_config
    tokens = config.scheduler_config.max_num_batched_tokens
    return model.get_vocab_size() / (12 * model.get_hidden_size() * tokens)


def _allowed_starts(config: VllmConfig, total: int) -> frozenset[int] | None:
    """Layers on which a stage may start, or None where any may.

    vLLM sends only hidden states and residual between stages. A model whose layers read what an
    earlier layer left behind in a buffer must not be cut between the two.
    """
    text = config.model_config.hf_text_config
    if getattr(text, "num_kv_shared_layers", 0):
        raise UnsupportedError(
            "model shares KV caches across layers (num_kv_shared_layers): stages would read caches "
            "of other ranks; only models whose layers own their caches work with vpp; leave out "
            '"vpp"'
        )
    if getattr(text, "index_topk", None) is None:
        return None
    kinds = getattr(text, "indexer_types", None)
    if kinds is not None:
        return frozenset(i for i, kind in enumerate(kinds[:total]) if kind == "full")
    pattern = getattr(text, "index_topk_pattern", None)
    if pattern is not None:
        return frozenset(i for i in range(total) if i >= len(pattern) or pattern[i] != "S")
    # the rule of vLLM's deepseek_v2.py: from the offset on, one layer in `every` computes indices
    every = getattr(text, "index_topk_freq", 1)
    offset = getattr(text, "index_skip_topk_offset", 2)
    return frozenset(i for i in range(total) if max(i - offset + 1, 0) % every == 0)


def _check_starts(split: tuple[int, ...], starts: frozenset[int] | None) -> None:
    if starts is None:
        return
    first = 0
    for layers in split:
        if first and first not in starts:
            raise UnsupportedError(
                f"layers per stage {','.join(map(str, split))}: a stage would start on layer "
                f"{first}, which reuses indices of an earlier layer; stages may start on "
                f"{sorted(starts)}; choose such a split"
            )
        first += layers
