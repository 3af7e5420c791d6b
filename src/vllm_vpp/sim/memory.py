"""Whether a plan fits: weights, KV cache and activations in flight, rank by rank.

Owns the sums of docs/planner.md. A rank of several devices holds attention caches once per device
where heads cannot be divided among them (latent attention: always).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from vllm_vpp.core.layout import Layout
from vllm_vpp.sim.analytic import Device
from vllm_vpp.sim.model import Layer, Model

__all__ = ["RankMemory", "largest_chunk", "rank_memory"]

_AT_WORK = (
    4  # stage boundaries' worth of activations inside a layer, beside the outputs kept until sent
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes of one rank, all its devices together; `available` is what vLLM may use."""

    rank: int
    weights: float
    cache: float
    activations: float
    available: float

    @property
    def needed(self) -> float:
        """Bytes."""
        return self.weights + self.cache + self.activations

    @property
    def fits(self) -> bool:
        """Whether the usable memory holds it all."""
        return self.needed <= self.available


def rank_memory(
    model: Model,
    device: Device,
    layout: Layout,
    split: Sequence[int],
    *,
    cached_tokens: int,
    chunk: int,
    depth: int,
    usable: float,
) -> list[RankMemory]:
    """Memory of every rank. `cached_tokens`: of all requests at once; `chunk`: the largest.

    `usable`: share of device memory that vLLM may take.
    """
    ends = list(accumulate(split))
    boundary = model.boundary_bytes_per_token * chunk * device.ways
    found = []
    for rank in range(layout.ranks):
        stages = layout.stages_of(rank)
        layers = [x for s in stages for x in model.layers[ends[s] - split[s] : ends[s]]]
        weights = sum(map(model.layer_weights, layers))
        weights += model.embedding * (rank == layout.owner(0))
        last = rank == layout.owner(layout.stages - 1)
        weights += model.embedding * (last and not (model.tied and rank == layout.owner(0)))
        found.append(
            RankMemory(
                rank=rank,
                weights=weights * model.weight_bytes,
                cache=cached_tokens * sum(_cache_bytes(model, device, x) for x in layers),
                activations=boundary * (depth + _AT_WORK),
                available=device.memory * usable,
            )
        )
    return found


def largest_chunk(device: Device, model: Model, memory: Sequence[RankMemory], depth: int) -> int:
    """Tokens of the largest chunk that leaves every rank within its memory; 0 where none does."""
    room = min(rank.available - rank.weights - rank.cache for rank in memory)
    return max(0, int(room / (model.boundary_bytes_per_token * device.ways * (depth + _AT_WORK))))


def _cache_bytes(model: Model, device: Device, layer: Layer) -> float:
    attention = layer.attention
    copies = float(device.ways)
    if not attention.kv_lora:
        copies = max(1.0, device.ways / attention.kv_heads)
    return attention.cache_values() * model.cache_bytes * copies
