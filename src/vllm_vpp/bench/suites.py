"""The measurements whose results are kept in `results/`: what each runs, and nothing about how.

Owns arms, prompts and numbers of rounds. `compare` runs them, `tools/make_docs.py` turns the files
into tables.
"""

import random
from collections.abc import Callable
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


def _prefill() -> Plan:
    """Both at a large chunk, and each at its own best fixed chunk on the machine at hand.

    The best ones are the planner's: `vllm-vpp calibrate` on a trace of this suite, then simulated.
    """
    tokens = 16_000
    arms = [
        _smollm2_arm(f"{name} {chunk}", chunk, tokens, {"layout": layout})
        for name, layout, chunk in (
            ("CPP", "linear", 1536),
            ("VPP", "v", 1536),
            ("CPP", "linear", 256),
            ("VPP", "v", 512),
        )
    ]
    return arms, {"": [Request(prompt=_text(tokens), max_tokens=8)]}


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
            name="prefill", title="CPP and V, SmolLM2-135M, 16,000 tokens", rounds=10, plan=_prefill
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
