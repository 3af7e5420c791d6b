"""Requests of many lengths over time, on the policies that somebody would choose among.

Owns the suite `mixed` and its like for a trace file of one's own. Lengths are those of the
workload, divided by `SCALE`, so that a run takes a quarter of a minute on two cores and about half
of the compute is attention; arrivals are kept.
"""

from pathlib import Path
from typing import Any

from vllm_vpp.bench.arms import llama_arm, llama_cost, random_prompt, with_kv_cache
from vllm_vpp.bench.engine import Arm, Request
from vllm_vpp.bench.suite import Plan, Suite
from vllm_vpp.bench.workloads import conversation, paper_lengths, scaled
from vllm_vpp.errors import InputError
from vllm_vpp.sim import request as sim

__all__ = ["CONVERSATION", "PAPER", "SCALE", "mixed", "suite_of_trace"]

SCALE = 16
PAPER, CONVERSATION = "paper", "conversation"
_LENGTH = 8192
_CLIENTS = 16  # as in the paper
_REQUESTS = 24
_KV_BYTES = 1 << 28  # per rank, 64K tokens: six engines are alive at once
_SHORTEST = 16  # tokens

# The best of the sizes tried on the simulator with both workloads, each arm for itself.
_ARMS: dict[str, tuple[int, dict[str, Any]]] = {
    "CPP": (512, {"layout": "linear"}),
    "DCPP": (1024, {"layout": "linear", "chunking": {"policy": "equal-time", "chunk": 768}}),
    "token throttling": (
        1024,
        {
            "layout": "linear",
            "chunking": {"policy": "token-throttle", "maximum": 512, "iterations": 4},
        },
    ),
    "VPP": (768, {"layout": "v"}),
    "VPP + ramp": (
        1024,
        {"layout": "v", "chunking": {"policy": "ramp", "peak": 768, "down": 2, "up": 0}},
    ),
    "auto": (2048, {"layout": "auto"}),
}


def mixed() -> Plan:
    """The paper's lengths, 16 clients that wait for answers; and real arrivals and lengths."""
    lengths = [max(n // SCALE, _SHORTEST) for n in paper_lengths(_REQUESTS)]
    paper = [Request(prompt=random_prompt(n, i), among=_CLIENTS) for i, n in enumerate(lengths)]
    return _arms(), {PAPER: paper, CONVERSATION: _as_sent(scaled(conversation(), SCALE))}


def suite_of_trace(path: Path) -> Suite:
    """The same arms on the requests of a trace file. Raises InputError where they do not fit."""
    requests = scaled(sim.read_trace(path), SCALE)
    longest = max(r.prompt + r.output for r in requests)
    if longest > _LENGTH:
        raise InputError(
            f"{path}: {longest * SCALE} tokens are more than {_LENGTH * SCALE}; leave such requests"
            " out"
        )
    name = f"mixed-{path.stem}"
    cases = {path.stem: _as_sent(requests)}
    return Suite(
        name=name,
        title=f"{path.stem}, lengths divided by {SCALE}, small Llama",
        rounds=8,
        plan=lambda: (_arms(), cases),
    )


def _arms() -> list[Arm]:
    made = [
        llama_arm(name, {"cost": llama_cost(), **vpp}, chunk=chunk, length=_LENGTH)
        for name, (chunk, vpp) in _ARMS.items()
    ]
    return [with_kv_cache(arm, _KV_BYTES) for arm in made]


def _as_sent(requests: list[sim.Request]) -> list[Request]:
    return [
        Request(
            prompt=random_prompt(max(r.prompt, _SHORTEST), i), max_tokens=r.output, at=r.arrival
        )
        for i, r in enumerate(requests)
    ]
