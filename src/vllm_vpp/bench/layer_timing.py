"""Times a model's layers on the device at hand, for a table cost model.

Owns layers made of random weights: the projections, attention and feed-forward part of the sizes in
the model's config, run by PyTorch's own kernels. An engine's kernels differ, so a fit to recorded
runs is better where an engine runs; this needs none. Imports torch only when called.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from vllm_vpp.errors import InputError, UnsupportedError
from vllm_vpp.sim.model import Layer, Model
from vllm_vpp.sim.table import TableCost

__all__ = ["Bench", "time_layers"]

_REPEATS = 3
_EXPERT_COPIES = (
    8  # distinct expert weights held; more would not change what a matrix product costs
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where and how to time. `threads`: CPU threads, None for PyTorch's own choice."""

    device: str
    dtype: str
    threads: int | None = None

    def prepare(self) -> tuple[Any, Any]:
        """Torch device and dtype. Raises InputError where this machine has no such device."""
        import torch

        dtypes = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float16": torch.float16}
        if self.dtype not in dtypes:
            raise InputError(f"--dtype {self.dtype}: must be one of {', '.join(dtypes)}")
        if self.device not in {"cpu", "cuda"}:
            raise InputError(f"--device {self.device}: must be cpu or cuda")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise InputError("--device cuda: no CUDA device here; choose cpu")
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        return torch.device(self.device), dtypes[self.dtype]

    def synchronise(self) -> None:
        """Wait for the device."""
        import torch

        if self.device == "cuda":
            torch.cuda.synchronize()


def time_layers(
    model: Model,
    bench: Bench,
    chunks: Sequence[int],
    prefixes: Sequence[int],
    tell: Callable[[str], None] = lambda text: None,
) -> TableCost:
    """Median of three for each kind of layer, chunk and prefix. Raises UnsupportedError for DSA."""
    kinds = list(dict.fromkeys(model.layers))
    if any(layer.attention.topk for layer in kinds):
        raise UnsupportedError(
            f"model {model.name}: sparse attention (DSA) has no kernel in PyTorch; plan with"
            " --hardware"
        )
    seconds = []
    for number, layer in enumerate(kinds):
        timed = _TimedLayer(model, layer, bench)
        rows = []
        for x in chunks:
            rows.append(tuple(timed.seconds(x, prefix) for prefix in prefixes))
            tell(f"layer kind {number + 1} of {len(kinds)}: {x} tokens: {rows[-1][-1]:.4g} s")
        seconds.append(tuple(rows))
    return TableCost(
        chunks=tuple(chunks),
        prefixes=tuple(prefixes),
        seconds=tuple(seconds),
        layers=tuple(kinds.index(layer) for layer in model.layers),
        split=(len(model.layers),),
        head=_head_seconds(model, bench),
        notes=_notes(model, bench),
    )


def _notes(model: Model, bench: Bench) -> dict[str, str]:
    import platform

    import torch

    name = torch.cuda.get_device_name() if bench.device == "cuda" else platform.processor()
    return {
        "model": model.name,
        "device": f"{bench.device} {name}".strip(),
        "dtype": bench.dtype,
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "method": "layers of random weights timed alone, median of three",
    }


def _median(bench: Bench, work: Callable[[], Any]) -> float:
    work()  # warm caches, allocate
    took = []
    for _ in range(_REPEATS):
        bench.synchronise()
        began = time.perf_counter()
        work()
        bench.synchronise()
        took.append(time.perf_counter() - began)
    return median(took)


def _head_seconds(model: Model, bench: Bench) -> float:
    import torch

    device, dtype = bench.prepare()
    weight = torch.randn(model.vocabulary, model.hidden, device=device, dtype=dtype)
    row = torch.randn(1, model.hidden, device=device, dtype=dtype)
    return _median(bench, lambda: row @ weight.T)


class _TimedLayer:
    """One layer's weights; `seconds(x, L)` runs it on x tokens after a prefix of L."""

    def __init__(self, model: Model, layer: Layer, bench: Bench) -> None:
        self.model, self.layer, self.bench = model, layer, bench
        self.device, self.dtype = bench.prepare()
        attention, hidden = layer.attention, model.hidden
        self.projections = [self._random(*shape) for shape in _projections(layer, hidden)]
        self.output = self._random(attention.heads * attention.v, hidden)
        copies = min(layer.mlp.experts, _EXPERT_COPIES)
        width = layer.mlp.intermediate
        self.experts = [
            (self._random(hidden, 2 * width), self._random(width, hidden)) for _ in range(copies)
        ]

    def _random(self, *shape: int) -> Any:
        import torch

        return torch.randn(*shape, device=self.device, dtype=self.dtype) / shape[0] ** 0.5

    def seconds(self, tokens: int, prefix: int) -> float:
        """Median seconds."""
        import torch

        attention = self.layer.attention
        seen = prefix if attention.window is None else min(prefix, attention.window)
        states = self._random(tokens, self.model.hidden)
        cached = [self._random(attention.kv_heads, seen, d) for d in (attention.qk, attention.v)]
        latent = self._random(seen, attention.kv_lora) if attention.kv_lora else None

        def work() -> None:
            with torch.inference_mode():
                self._run(states, cached, latent)

        return _median(self.bench, work)

    def _run(self, states: Any, cached: list[Any], latent: Any) -> None:
        attention, tokens = self.layer.attention, states.shape[0]
        for weight in self.projections:
            wide = states if states.shape[1] == weight.shape[0] else self._as_wide(states, weight)
            wide @ weight
        if latent is not None:  # keys and values of the prefix are built again
            latent @ self.projections[-1]
        mixed = _attend(attention, tokens, cached)
        states = states + mixed @ self.output
        for count, (up, down) in self._work_of_experts(tokens):
            both = states[:count] @ up
            gate, value = both.chunk(2, dim=-1)
            (gate.sigmoid() * gate * value) @ down

    def _as_wide(self, states: Any, weight: Any) -> Any:
        return states.new_empty(states.shape[0], weight.shape[0]).fill_(0.5)

    def _work_of_experts(self, tokens: int) -> Iterator[tuple[int, tuple[Any, Any]]]:
        """Tokens and weights of each expert, tokens spread evenly."""
        mlp = self.layer.mlp
        for _ in range(mlp.shared):
            yield tokens, self.experts[0]
        used = min(mlp.experts, tokens * mlp.active)
        for number in range(used):
            count = -(-tokens * mlp.active // used)
            yield min(count, tokens), self.experts[number % len(self.experts)]


def _projections(layer: Layer, hidden: int) -> list[tuple[int, int]]:
    attention = layer.attention
    if not attention.kv_lora:
        width = attention.heads * attention.qk + attention.kv_heads * (attention.qk + attention.v)
        return [(hidden, width)]
    query = [(attention.q_lora or hidden, attention.heads * attention.qk)]
    if attention.q_lora:
        query.insert(0, (hidden, attention.q_lora))
    up = (attention.kv_lora, attention.heads * (attention.nope + attention.v))
    return [*query, (hidden, attention.kv_lora + attention.rope), up]


def _attend(attention: Any, tokens: int, cached: list[Any]) -> Any:
    """Full attention to the prefix and causal attention among the new tokens."""
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    keys, values = cached
    groups = attention.heads // attention.kv_heads
    query = keys.new_ones(1, attention.heads, tokens, attention.qk)
    key = keys.new_ones(1, attention.heads, tokens, attention.qk)
    value = values.new_ones(1, attention.heads, tokens, attention.v)
    mixed = sdpa(query, key, value, is_causal=True)
    if keys.shape[1]:
        wide = (t.repeat_interleave(groups, dim=0)[None] for t in (keys, values))
        mixed = mixed + sdpa(query, *wide)
    return mixed.transpose(1, 2).reshape(tokens, -1)
