"""Suites whose results stand beside what the simulator says of them."""

from typing import Any

from vllm_vpp.bench.arms import llama_arm, smollm2_arm, text
from vllm_vpp.bench.engine import Request
from vllm_vpp.bench.suite import Plan

__all__ = ["reality"]

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
