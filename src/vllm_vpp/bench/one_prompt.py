"""Suites of one prompt on small models: micro-batches in flight, attention that bends."""

from typing import Any

from vllm_vpp.bench.arms import llama_arm, llama_cost, made_arm, random_prompt
from vllm_vpp.bench.engine import Request
from vllm_vpp.bench.models import small
from vllm_vpp.bench.suite import Plan

__all__ = ["bubble", "depth", "lengths", "sliding"]


def bubble() -> Plan:
    """The plain pipeline at several depths, and a V, all in equal chunks."""
    arms = [
        *(
            llama_arm(f"CPP, {n} in flight", {"layout": "linear", "in_flight": n})
            for n in (2, 3, 6)
        ),
        llama_arm("VPP", {"layout": "v"}),
    ]
    return arms, {"": [Request(prompt=random_prompt(32_768, 1))]}


def depth() -> Plan:
    """How many micro-batches a V needs in flight."""
    arms = [
        llama_arm(f"V, {n} in flight", {"layout": "v", "in_flight": n}, chunk=512, length=8208)
        for n in (2, 3, 4, 5, 6, 9)
    ]
    return arms, {"": [Request(prompt=random_prompt(8192, 1))]}


def lengths() -> Plan:
    """Powers of two, from where a V has little to win; longer ones are suites of their own."""
    counts = [4096, 8192, 16_384]
    wanted: list[tuple[str, int, dict[str, Any]]] = [
        *((f"CPP {chunk}", chunk, {"layout": "linear"}) for chunk in (512, 1024, 2048)),
        *((f"VPP {chunk}", chunk, {"layout": "v"}) for chunk in (1024, 2048)),
        ("auto", 4096, {"layout": "auto", "prompts": counts, "cost": llama_cost()}),
    ]
    arms = [
        llama_arm(name, vpp, chunk=chunk, length=counts[-1] + 16) for name, chunk, vpp in wanted
    ]
    return arms, {f"{n}": [Request(prompt=random_prompt(n, 1))] for n in reversed(counts)}


def sliding() -> Plan:
    """Two layers in three see 1024 tokens only, so chunk times bend."""
    spec = small("gemma3", layers=12, dtype="bfloat16", sliding_window=1024)
    ramp = {"peak": 1024, "down": 4, "up": 1}
    chunkings: dict[str, dict[str, Any] | None] = {
        "fixed": None,
        "ramp": {"policy": "ramp", **ramp},
        "hybrid": {"policy": "hybrid", **ramp},
    }
    arms = [
        made_arm(
            f"V, {name}",
            spec,
            {"layout": "v"} | ({} if chunking is None else {"chunking": chunking}),
            chunk=1024 if chunking is None else 2048,
            length=16_400,
        )
        for name, chunking in chunkings.items()
    ]
    return arms, {"": [Request(prompt=random_prompt(16_384, 1))]}
