"""What long prompts do to everybody else: requests that decode, and short ones that arrive.

Owns the suite `fairness`. Two prompts of 12,000 tokens come while four requests decode and short
ones trickle in. By default vLLM gives a long prompt the whole step, and short ones wait for its
end; with `long_prefill_token_threshold` they share its steps. All arms have the same chunk limit.
"""

from dataclasses import replace
from typing import Any

from vllm_vpp.bench.arms import llama_arm, llama_cost, random_prompt
from vllm_vpp.bench.engine import Arm, Request
from vllm_vpp.bench.suite import Plan
from vllm_vpp.core.cost import QuadraticCost

__all__ = ["LONG", "SHORT", "fairness"]

LONG, SHORT = 12_000, 100  # tokens
_CHUNK = 1024
_SHARED: dict[str, Any] = {"long_prefill_token_threshold": 768}
_ARMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "CPP": ({"layout": "linear"}, {}),
    "VPP": ({"layout": "v"}, {}),
    "VPP + ramp": (
        {"layout": "v", "chunking": {"policy": "ramp", "peak": 1040, "down": 4, "up": 0}},
        {},
    ),
    "CPP, shared steps": ({"layout": "linear"}, _SHARED),
    "VPP, shared steps": ({"layout": "v"}, _SHARED),
}


def fairness() -> Plan:
    """Four that decode until after the second long prompt, two long prompts, twelve short ones.

    They arrive in proportion to the time of a long prompt, so that machines compare.
    """
    law = QuadraticCost(**llama_cost())
    alone = law.work(LONG) / 2  # seconds, on two ranks without bubbles
    decoding = [Request(prompt=random_prompt(64, i), max_tokens=64) for i in range(4)]
    long = [
        Request(prompt=random_prompt(LONG, 10 + i), at=(0.05 + 0.8 * i) * alone) for i in range(2)
    ]
    short = [
        Request(prompt=random_prompt(SHORT, 20 + i), at=(0.1 + 0.12 * i) * alone) for i in range(12)
    ]
    return [_arm(name) for name in _ARMS], {"": [*decoding, *long, *short]}


def _arm(name: str) -> Arm:
    vpp, options = _ARMS[name]
    made = llama_arm(name, {"cost": llama_cost(), **vpp}, chunk=_CHUNK, length=LONG + 100)
    return replace(made, options=made.options | options)
