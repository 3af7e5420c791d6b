"""Time of a stage from the model's sizes and the device's peaks: a roofline, layer by layer.

Owns the arithmetic of docs/planner.md. For x tokens after a prefix of L, one layer takes the sum of
  products   2 W_active (x + half) / (matmul flops), at least the time to read the weights touched;
  attention  2 heads (qk + v) pairs / (attention flops), pairs = x (L + x/2), or what the window or
  the
             top-k leaves of it;
  indexer    2 index_heads index_dim x (L + x/2) / (matmul flops), where the layer has one;
  prefix     2 up_projection L / (matmul flops): latent attention rebuilds keys and values (gamma);
  exchange   tensor parallelism: two all-reduces of x hidden values; of experts also there and back
             if that is less;
  launch     a constant.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import mul

from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.errors import InputError
from vllm_vpp.sim.hardware import Hardware
from vllm_vpp.sim.model import Layer, Model
from vllm_vpp.sim.splittable import LayerCosts

__all__ = ["AnalyticCost", "Device", "pairs"]


def pairs(tokens: int, prefix: int, most: int | None) -> float:
    """Query-key pairs of x causal tokens after L when each query sees at most `most` keys."""
    if most is None:
        return tokens * (prefix + tokens / 2)
    growing = min(max(most - prefix, 0), tokens)
    return growing * (prefix + growing / 2) + (tokens - growing) * most


@dataclass(frozen=True, slots=True)
class Device:
    """A rank: `ways` devices of one kind under tensor parallelism."""

    hardware: Hardware
    ways: int = 1

    def __post_init__(self) -> None:
        if self.ways < 1:
            raise InputError(f"tensor parallel={self.ways}: must be at least 1; correct it")

    @property
    def matmul(self) -> float:
        """FLOP/s of large matrix products."""
        return self.hardware.flops * self.hardware.matmul * self.ways

    @property
    def attention(self) -> float:
        """FLOP/s of attention."""
        return self.hardware.flops * self.hardware.attention * self.ways

    @property
    def reads(self) -> float:
        """Bytes per second of memory."""
        return self.hardware.memory_bandwidth * self.ways

    @property
    def memory(self) -> float:
        """Bytes."""
        return self.hardware.memory * self.ways

    def exchange(self, size: float) -> float:
        """Seconds in which every device sends its share of `size` bytes to all others."""
        if self.ways == 1:
            return 0.0
        share = (self.ways - 1) / self.ways
        return self.hardware.link_latency + size * share / self.hardware.link_bandwidth


@dataclass(frozen=True)
class AnalyticCost:
    """A cost model: `split` holds the layers of each stage."""

    model: Model
    device: Device
    split: tuple[int, ...]

    def with_split(self, split: Sequence[int]) -> "AnalyticCost":
        """The same model, cut otherwise."""
        return AnalyticCost(self.model, self.device, tuple(split))

    @cached_property
    def _kinds(self) -> tuple[list[Layer], list[list[int]]]:
        """The distinct layers, and for each stage how many it has of each."""
        distinct = list(dict.fromkeys(self.model.layers))
        ends = list(accumulate(self.split))
        stages = [Counter(self.model.layers[a:b]) for a, b in zip([0, *ends], ends, strict=False)]
        return distinct, [[stage[kind] for kind in distinct] for stage in stages]

    def time(self, stage: int, micro_batch: MicroBatch) -> float:
        """Seconds that `stage` computes on `micro_batch`."""
        return self.times(micro_batch)[stage]

    def times(self, micro_batch: MicroBatch) -> list[float]:
        """Seconds of every stage; 0 for an empty micro-batch."""
        chunks = micro_batch.chunks
        if not chunks:
            return [0.0] * len(self.split)
        if len(chunks) > 1:
            return self._times(chunks)
        where = chunks[0][1:]
        if where not in self._known:
            self._known[where] = self._times(chunks)
        return self._known[where]

    @cached_property
    def _known(self) -> dict[tuple[int, int], list[float]]:
        """Times of single chunks, by prefix and tokens: most prompts are cut alike many times."""
        return {}

    def _times(self, chunks: Sequence[Chunk]) -> list[float]:
        distinct, counts = self._kinds
        seconds = [self.layer_seconds(kind, chunks) for kind in distinct]
        stages = [sum(map(mul, seconds, numbers)) for numbers in counts]
        stages[-1] += self.head_seconds(len(chunks))
        return stages

    def layer_costs(self, micro_batch: MicroBatch) -> LayerCosts:
        """Seconds of each layer, of the embedding (none) and of the head."""
        chunks = micro_batch.chunks
        seconds = {k: self.layer_seconds(k, chunks) for k in set(self.model.layers)}
        layers = [seconds[layer] for layer in self.model.layers]
        return LayerCosts(layers, 0.0, self.head_seconds(len(chunks)))

    def head_seconds(self, rows: int) -> float:
        """Norm and head on the last token of each chunk: reads the head's weights."""
        size = self.model.embedding
        products = 2 * size * rows / self.device.matmul
        return max(products, size * self.model.weight_bytes / self.device.reads)

    def layer_seconds(self, layer: Layer, chunks: Sequence[Chunk]) -> float:
        """Seconds of one layer on the chunks of a micro-batch; see the module text."""
        device, hidden = self.device, self.model.hidden
        tokens = sum(chunk.tokens for chunk in chunks)
        projections = layer.attention.weights(hidden) - layer.attention.up_projection()
        active = projections + layer.mlp.active_weights(hidden)
        products = 2 * active * (tokens + device.hardware.half_tokens) / device.matmul
        read = self._touched(layer, tokens) * self.model.weight_bytes / device.reads
        return (
            max(products, read)
            + sum(self._chunk_seconds(layer, chunk) for chunk in chunks)
            + self._exchange(layer, tokens)
            + device.hardware.layer_overhead
        )

    def _touched(self, layer: Layer, tokens: int) -> float:
        """Parameters read: experts that nobody chose stay in memory."""
        mlp = layer.mlp
        used = min(mlp.experts, mlp.active * tokens) + mlp.shared
        return layer.attention.weights(self.model.hidden) + 3 * self.model.hidden * (
            mlp.intermediate * used
        )

    def _chunk_seconds(self, layer: Layer, chunk: Chunk) -> float:
        attention, device = layer.attention, self.device
        most = attention.topk or attention.window
        seen = pairs(chunk.tokens, chunk.prefix, most)
        decodes = chunk.tokens == 1
        if attention.kv_lora and (attention.topk or decodes):  # absorbed: scores in latent space
            width = 2 * attention.kv_lora + attention.rope
            rebuilt = 2 * attention.up_projection() * chunk.tokens
        else:
            width = attention.qk + attention.v
            rebuilt = 2 * attention.up_projection() * (chunk.prefix + chunk.tokens)
        seconds = 2 * attention.heads * width * seen / device.attention + rebuilt / device.matmul
        if attention.indexer:
            every = pairs(chunk.tokens, chunk.prefix, None)
            seconds += 2 * attention.index_heads * attention.index_dim * every / device.matmul
        cache = attention.cache_values() * self.model.cache_bytes
        reached = chunk.prefix if most is None else min(chunk.prefix, most * chunk.tokens)
        return max(seconds, cache * reached / device.reads)

    def _exchange(self, layer: Layer, tokens: int) -> float:
        size = tokens * self.model.hidden * 2.0
        reduce = 2 * self.device.exchange(size)  # scatter, then gather
        if not layer.mlp.routed:
            return 2 * reduce
        there_and_back = 2 * self.device.exchange(size * layer.mlp.active / self.device.ways)
        return reduce + min(reduce, there_and_back)
