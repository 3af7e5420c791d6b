"""The measurements whose results are kept in `results/`: what each runs, and nothing about how.

Owns arms, prompts and numbers of rounds. `compare` runs them, `tools/make_docs.py` turns the files
into tables.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_vpp.bench.document import document
from vllm_vpp.bench.engine import Arm, Request
from vllm_vpp.bench.models import checkpoint, small
from vllm_vpp.bench.smollm2 import long_context, smollm2

__all__ = ["SUITES", "Suite"]

Plan = tuple[list[Arm], dict[str, list[Request]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """`plan` makes arms and cases; `rounds` is how often each arm is measured on each case.

    `alive`: how many engines are alive at once and measured in turn, then the next ones.
    """

    name: str
    title: str
    rounds: int
    plan: Callable[[], Plan]
    alive: int = 8


def _smollm2_arm(name: str, chunk: int, tokens: int, vpp: dict[str, Any]) -> Arm:
    length = tokens + 32
    return Arm(
        name=name,
        model=str(smollm2()),
        ranks=2,
        chunk=chunk,
        max_model_len=length,
        vpp=vpp,
        options={"dtype": "bfloat16", "hf_overrides": long_context(length)},
    )


def _text(tokens: int) -> list[int]:
    from transformers import AutoTokenizer

    return document(AutoTokenizer.from_pretrained(smollm2()), tokens)


def _chunks() -> Plan:
    tokens = 16_000
    arms = [
        _smollm2_arm(f"{name} {chunk}", chunk, tokens, {"layout": layout})
        for chunk in (256, 512, 1024, 2048)
        for name, layout in (("CPP", "linear"), ("VPP", "v"))
    ]
    return arms, {"": [Request(prompt=_text(tokens))]}


# SmolLM2 on two cores without matrix units: `vllm-vpp calibrate` on recorded runs, and the chunks
# that the planner finds best with it. Given here so that every run of a suite cuts alike.
_COST: dict[str, Any] = {"c0": 0.0469, "b": 1.1635e-3, "a": 8.628e-7}
_RAMP: dict[str, Any] = {"policy": "ramp", "peak": 1120, "down": 12, "up": 1}
_WAVE_RAMP: dict[str, Any] = {"policy": "ramp", "peak": 1424, "down": 14, "up": 2}
_EQUAL_TIME: dict[str, Any] = {"policy": "equal-time", "chunk": 1024}
_POLICIES: dict[str, tuple[int, dict[str, Any]]] = {
    "CPP": (256, {"layout": "linear"}),
    "DCPP": (1024, {"layout": "linear", "chunking": _EQUAL_TIME}),
    "VPP": (256, {"layout": "v"}),
    "VPP + ramp": (2048, {"layout": "v", "chunking": _RAMP}),
    "3 sweeps + ramp": (2048, {"layout": "wave", "sweeps": 3, "chunking": _WAVE_RAMP}),
}


def _best(tokens: int, names: Sequence[str]) -> Plan:
    """Policies, each at its best on the machine at hand as the planner predicts it."""
    arms = [
        _smollm2_arm(name, _POLICIES[name][0], tokens, {"cost": _COST, **_POLICIES[name][1]})
        for name in names
    ]
    return arms, {"": [Request(prompt=_text(tokens), max_tokens=8)]}


def _equal() -> Plan:
    arms = [
        _smollm2_arm(name, 1536, 16_000, {"layout": layout})
        for name, layout in (("CPP", "linear"), ("VPP", "v"))
    ]
    return arms, {"": [Request(prompt=_text(16_000), max_tokens=8)]}


def _prefill() -> Plan:
    return _best(16_000, ["CPP", "VPP", "VPP + ramp"])


def _policies() -> Plan:
    return _best(16_000, list(_POLICIES))


def _llama_arm(name: str, vpp: dict[str, Any], *, chunk: int = 2048, length: int = 32_800) -> Arm:
    spec = small("llama", layers=8, dtype="bfloat16")
    return Arm(
        name=name,
        model=str(checkpoint(spec)),
        ranks=2,
        chunk=chunk,
        max_model_len=length,
        vpp=vpp,
        options={"dtype": "bfloat16"},
    )


def _random_prompt(tokens: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1000) for _ in range(tokens)]


def _bubble() -> Plan:
    arms = [
        *(
            _llama_arm(f"CPP, {n} in flight", {"layout": "linear", "in_flight": n})
            for n in (2, 3, 6)
        ),
        _llama_arm("VPP", {"layout": "v"}),
    ]
    return arms, {"": [Request(prompt=_random_prompt(32_768, 1))]}


def _long() -> Plan:
    """Small chunks cost little here, so a ramp can be steep."""
    ramp = {"policy": "ramp", "peak": 1568, "down": 6, "up": 1}
    arms = [
        _llama_arm("CPP", {"layout": "linear"}, length=65_540),
        _llama_arm("VPP", {"layout": "v"}, length=65_540),
        _llama_arm(
            "VPP + ramp",
            {"layout": "v", "chunking": ramp, "cost": _LLAMA_COST},
            chunk=8192,
            length=65_540,
        ),
    ]
    return arms, {"": [Request(prompt=_random_prompt(65_500, 1))]}


_LLAMA_COST: dict[str, Any] = {"c0": 0.01826, "b": 2.6393e-4, "a": 2.0496e-7}


def _ablation() -> Plan:
    """The paper's: three requests at once; orders, then packing, then ramps."""
    ramp = {"policy": "ramp", "peak": 976, "down": 6, "up": 2}
    variants: dict[str, dict[str, Any]] = {
        "vanilla": {"order": "vanilla", "packing": False},
        "async": {"order": "async", "packing": False},
        "async, packed": {"order": "async"},
        "greedy, packed": {},
        "greedy, packed, ramp": {"chunking": ramp, "cost": _LLAMA_COST},
    }
    arms = [
        _llama_arm(name, {"layout": "v", **vpp}, chunk=1024, length=8300)
        for name, vpp in variants.items()
    ]
    return arms, {"": [Request(prompt=_random_prompt(8192, i)) for i in range(3)]}


def _short() -> Plan:
    """Where a V has nothing to win: prompts of 1K to 8K tokens, 32 at once."""
    layouts: dict[str, dict[str, Any]] = {
        "CPP": {"layout": "linear"},
        "VPP": {"layout": "v"},
        "auto": {"layout": "auto"},
    }
    arms = [
        _llama_arm(f"{name} {chunk}", vpp, chunk=chunk, length=8300)
        for name, vpp in layouts.items()
        for chunk in (2048, 8192)
    ]
    rng = random.Random(7)
    lengths = [round(1024 * 8 ** rng.random()) for _ in range(32)]
    return arms, {"": [Request(prompt=_random_prompt(n, i)) for i, n in enumerate(lengths)]}


def _depth() -> Plan:
    arms = [
        _llama_arm(f"V, {n} in flight", {"layout": "v", "in_flight": n}, chunk=1024, length=16_400)
        for n in (2, 3, 4, 5, 6, 9)
    ]
    return arms, {"": [Request(prompt=_random_prompt(16_384, 1))]}


def _sliding() -> Plan:
    """Two layers in three see 1024 tokens only, so chunk times bend."""
    spec = small("gemma3", layers=12, dtype="bfloat16", sliding_window=1024)
    ramp = {"peak": 2048, "down": 4, "up": 1}
    chunkings: dict[str, dict[str, Any] | None] = {
        "fixed": None,
        "ramp": {"policy": "ramp", **ramp},
        "hybrid": {"policy": "hybrid", **ramp},
    }
    arms = [
        Arm(
            name=f"V, {name}",
            model=str(checkpoint(spec)),
            ranks=2,
            chunk=2048 if chunking is None else 4096,
            max_model_len=32_800,
            vpp={"layout": "v"} | ({} if chunking is None else {"chunking": chunking}),
            options={"dtype": "bfloat16"},
        )
        for name, chunking in chunkings.items()
    ]
    return arms, {"": [Request(prompt=_random_prompt(32_768, 1))]}


def _decode() -> Plan:
    arms = [
        _smollm2_arm("linear", 2048, 4096, {"layout": "linear"}),
        _smollm2_arm("V", 2048, 4096, {"layout": "v"}),
    ]
    text = _text(1500)
    return arms, {"": [Request(prompt=text[: 100 + 8 * i], max_tokens=128) for i in range(8)]}


def _memory() -> Plan:
    arms = [_llama_arm(f"V, {n} in flight", {"layout": "v", "in_flight": n}) for n in (3, 5, 9, 17)]
    return arms, {
        f"{n} requests": [Request(prompt=_random_prompt(4096, i)) for i in range(n)]
        for n in (4, 16)
    }


def _reality() -> Plan:
    """Runs that a fitted cost model has to predict: two models, layouts, chunk sizes, lengths."""
    lengths = (6000, 10_000, 16_000)
    arms = [
        _smollm2_arm(f"smollm2 {layout} {chunk}", chunk, 16_000, vpp)
        for layout, vpp in _LAYOUTS.items()
        for chunk in (1024, 2048)
    ]
    arms += [
        _llama_arm(f"llama {layout} 2048", vpp, length=16_032) for layout, vpp in _LAYOUTS.items()
    ]
    text = [token % 1000 for token in _text(16_000)]  # in the vocabulary of both models
    return arms, {str(n): [Request(prompt=text[:n])] for n in lengths}


_LAYOUTS: dict[str, dict[str, Any]] = {
    "linear": {"layout": "linear"},
    "v": {"layout": "v"},
    "wave3": {"layout": "wave", "sweeps": 3},
}

SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            name="chunks",
            title="Best fixed chunk, SmolLM2-135M, 16,000 tokens",
            rounds=3,
            plan=_chunks,
            alive=2,
        ),
        Suite(
            name="equal",
            title="Equal chunks, SmolLM2-135M, 16,000 tokens",
            rounds=10,
            plan=_equal,
        ),
        Suite(
            name="prefill",
            title="Each at its best, SmolLM2-135M, 16,000 tokens",
            rounds=10,
            plan=_prefill,
        ),
        Suite(
            name="policies",
            title="Every policy at its best, SmolLM2-135M, 16,000 tokens",
            rounds=10,
            plan=_policies,
        ),
        Suite(
            name="long",
            title="Bubble, small Llama, 65,500 tokens",
            rounds=2,
            plan=_long,
        ),
        Suite(
            name="ablation",
            title="Three requests at once, small Llama, 8192 tokens each",
            rounds=8,
            plan=_ablation,
        ),
        Suite(
            name="short",
            title="32 short prompts at once, small Llama",
            rounds=8,
            plan=_short,
        ),
        Suite(
            name="depth",
            title="Micro-batches in flight, small Llama, 16,384 tokens in chunks of 1024",
            rounds=4,
            plan=_depth,
        ),
        Suite(
            name="sliding",
            title="Sliding windows, small Gemma 3, 32,768 tokens",
            rounds=4,
            plan=_sliding,
        ),
        Suite(
            name="bubble",
            title="Bubble, small Llama, 32,768 tokens in chunks of 2048",
            rounds=5,
            plan=_bubble,
        ),
        Suite(
            name="decode",
            title="Decode, SmolLM2-135M, batch of 8, 128 tokens each",
            rounds=8,
            plan=_decode,
        ),
        Suite(
            name="memory",
            title="Memory of micro-batches in flight, small Llama",
            rounds=1,
            plan=_memory,
        ),
        Suite(
            name="reality",
            title="Runs that a fitted cost model has to predict",
            rounds=1,
            plan=_reality,
            alive=1,
        ),
    )
}
