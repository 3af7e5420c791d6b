"""Suites of several requests at once: orders and packing, short prompts, decode, memory."""

import random
from typing import Any

from vllm_vpp.bench.arms import llama_arm, llama_cost, random_prompt, smollm2_arm, text
from vllm_vpp.bench.engine import Request
from vllm_vpp.bench.suite import Plan

__all__ = ["ablation", "decode", "memory", "short"]


def ablation() -> Plan:
    """The paper's: three requests at once; orders, then packing, then ramps."""
    ramp = {"policy": "ramp", "peak": 976, "down": 6, "up": 2}
    variants: dict[str, dict[str, Any]] = {
        "vanilla": {"order": "vanilla", "packing": False},
        "async": {"order": "async", "packing": False},
        "async, packed": {"order": "async"},
        "greedy, packed": {},
        "greedy, packed, ramp": {"chunking": ramp, "cost": llama_cost()},
    }
    arms = [
        llama_arm(name, {"layout": "v", **vpp}, chunk=1024, length=8300)
        for name, vpp in variants.items()
    ]
    return arms, {"": [Request(prompt=random_prompt(8192, i)) for i in range(3)]}


def short() -> Plan:
    """Where a V has nothing to win: prompts of 1K to 8K tokens, 32 at once."""
    arms = [
        llama_arm(f"{name} {chunk}", {"layout": layout}, chunk=chunk, length=8300)
        for name, layout, chunk in (
            ("CPP", "linear", 512),
            ("CPP", "linear", 1024),
            ("VPP", "v", 1024),
            ("auto", "auto", 8192),
        )
    ]
    rng = random.Random(7)
    lengths = [round(1024 * 8 ** rng.random()) for _ in range(32)]
    return arms, {"": [Request(prompt=random_prompt(n, i)) for i, n in enumerate(lengths)]}


def decode() -> Plan:
    """Eight requests that decode together."""
    arms = [
        smollm2_arm("linear", 2048, 4096, {"layout": "linear"}),
        smollm2_arm("V", 2048, 4096, {"layout": "v"}),
    ]
    prompt = text(1500)
    return arms, {"": [Request(prompt=prompt[: 100 + 8 * i], max_tokens=128) for i in range(8)]}


def memory() -> Plan:
    """Peak memory against the number of micro-batches in flight."""
    arms = [llama_arm(f"V, {n} in flight", {"layout": "v", "in_flight": n}) for n in (3, 5, 9, 17)]
    return arms, {
        f"{n} requests": [Request(prompt=random_prompt(4096, i)) for i in range(n)] for n in (4, 16)
    }
