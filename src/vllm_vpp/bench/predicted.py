"""Suites whose results stand beside what the simulator says of them."""

from dataclasses import replace
from typing import Any

from vllm_vpp.bench.arms import llama_arm, llama_cost, random_prompt, smollm2_arm, text
from vllm_vpp.bench.engine import Request
from vllm_vpp.bench.suite import Plan

__all__ = ["FITTED", "STOCK", "arms", "reality"]

_LAYOUTS: dict[str, dict[str, Any]] = {
    "linear": {"layout": "linear"},
    "v": {"layout": "v"},
    "wave3": {"layout": "wave", "sweeps": 3},
}


def reality() -> Plan:
    """Runs that a fitted cost model has to predict: two models, layouts, chunk sizes, lengths."""
    lengths = (6000, 10_000, 16_000)
    arms = [
        smollm2_arm(f"smollm2 {layout} {chunk}", chunk, 16_000, vpp)
        for layout, vpp in _LAYOUTS.items()
        for chunk in (1024, 2048)
    ]
    arms += [
        llama_arm(f"llama {layout} 2048", vpp, length=16_032) for layout, vpp in _LAYOUTS.items()
    ]
    prompt = [token % 1000 for token in text(16_000)]  # in the vocabulary of both models
    return arms, {str(n): [Request(prompt=prompt[:n])] for n in lengths}


STOCK = "stock vLLM, one rank"
FITTED = ("CPP", "VPP")
"""Arms of `arms` that the cost of the others' predictions is fitted to."""

_TOKENS = 8192
# Each at its best on the simulator with `llama_cost`; token throttling as it is.
_LINEAR: dict[str, tuple[int, dict[str, Any]]] = {
    "CPP": (256, {"policy": "fixed", "chunk": 256}),
    "equal-time": (4096, {"policy": "equal-time", "chunk": 1024}),
    "equal-time-online": (4096, {"policy": "equal-time-online", "chunk": 512, "minimum": 256}),
    "equal-flops": (4096, {"policy": "equal-flops", "chunks": 32}),
    "dp": (4096, {"policy": "dp"}),
    "token-throttle": (4096, {"policy": "token-throttle"}),
}


def arms() -> Plan:
    """Every policy on one prompt, and stock vLLM where it runs.

    On a CPU stock vLLM runs eager models on one rank only; here that is one core, as each rank of
    the others has.
    """
    length = _TOKENS + 16
    stock = replace(llama_arm(STOCK, {}, length=length), ranks=1, vpp=None)
    ramp = {"policy": "ramp", "peak": 1024, "down": 11, "up": 1}
    folded: dict[str, tuple[int, dict[str, Any]]] = {
        "VPP": (512, {"layout": "v"}),
        "VPP + ramp": (4096, {"layout": "v", "chunking": ramp}),
        "auto": (4096, {"layout": "auto", "prompts": [_TOKENS]}),
    }
    each = {n: (c, {"layout": "linear", "chunking": spec}) for n, (c, spec) in _LINEAR.items()}
    made = [
        llama_arm(name, {"cost": llama_cost(), **vpp}, chunk=chunk, length=length)
        for name, (chunk, vpp) in (each | folded).items()
    ]
    return [*made, stock], {"": [Request(prompt=random_prompt(_TOKENS, 1))]}
