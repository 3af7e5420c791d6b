"""The measurements whose results are kept in `results/`: the one registry.

Owns titles, numbers of rounds, and the plans of long prompts, one at a time; plans of other kinds
are modules of their own. `compare` runs them, `tools/make_docs.py` turns the files into tables.
"""

from collections.abc import Sequence
from typing import Any

from vllm_vpp.bench import mixed, one_prompt, overhead, predicted, tau, together
from vllm_vpp.bench.arms import LLAMA_COST, llama_arm, random_prompt, smollm2_arm, text
from vllm_vpp.bench.engine import Request
from vllm_vpp.bench.suite import Plan, Suite

__all__ = ["SUITES"]


def _chunks() -> Plan:
    tokens = 16_000
    arms = [
        smollm2_arm(f"{name} {chunk}", chunk, tokens, {"layout": layout})
        for chunk in (256, 512, 1024, 2048)
        for name, layout in (("CPP", "linear"), ("VPP", "v"))
    ]
    return arms, {"": [Request(prompt=text(tokens))]}


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
        smollm2_arm(name, _POLICIES[name][0], tokens, {"cost": _COST, **_POLICIES[name][1]})
        for name in names
    ]
    return arms, {"": [Request(prompt=text(tokens), max_tokens=8)]}


def _equal() -> Plan:
    arms = [
        smollm2_arm(name, 1536, 16_000, {"layout": layout})
        for name, layout in (("CPP", "linear"), ("VPP", "v"))
    ]
    return arms, {"": [Request(prompt=text(16_000), max_tokens=8)]}


def _prefill() -> Plan:
    return _best(16_000, ["CPP", "VPP", "VPP + ramp"])


def _policies() -> Plan:
    return _best(16_000, list(_POLICIES))


def _long() -> Plan:
    """Small chunks cost little here, so a ramp can be steep."""
    ramp = {"policy": "ramp", "peak": 1568, "down": 6, "up": 1}
    arms = [
        llama_arm("CPP", {"layout": "linear"}, length=65_540),
        llama_arm("VPP", {"layout": "v"}, length=65_540),
        llama_arm(
            "VPP + ramp",
            {"layout": "v", "chunking": ramp, "cost": LLAMA_COST},
            chunk=8192,
            length=65_540,
        ),
    ]
    return arms, {"": [Request(prompt=random_prompt(65_500, 1))]}


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
            plan=together.ablation,
        ),
        Suite(
            name="short",
            title="32 short prompts at once, small Llama",
            rounds=8,
            plan=together.short,
        ),
        Suite(
            name="depth",
            title="Micro-batches in flight, small Llama, 16,384 tokens in chunks of 1024",
            rounds=4,
            plan=one_prompt.depth,
        ),
        Suite(
            name="sliding",
            title="Sliding windows, small Gemma 3, 32,768 tokens",
            rounds=4,
            plan=one_prompt.sliding,
        ),
        Suite(
            name="bubble",
            title="Bubble, small Llama, 32,768 tokens in chunks of 2048",
            rounds=5,
            plan=one_prompt.bubble,
        ),
        Suite(
            name="decode",
            title="Decode, SmolLM2-135M, batch of 8, 128 tokens each",
            rounds=8,
            plan=together.decode,
        ),
        Suite(
            name="memory",
            title="Memory of micro-batches in flight, small Llama",
            rounds=1,
            plan=together.memory,
        ),
        Suite(
            name="reality",
            title="Runs that a fitted cost model has to predict",
            rounds=1,
            plan=predicted.reality,
            alive=1,
        ),
        Suite(
            name="mixed",
            title=f"Many lengths over time, divided by {mixed.SCALE}, small Llama",
            rounds=4,
            plan=mixed.mixed,
        ),
        Suite(
            name="tau",
            title="Chunk time against chunk number, 16,384 tokens in chunks of 1024",
            rounds=4,
            plan=tau.tau,
            timed=tau.latent,
        ),
        Suite(
            name="arms",
            title="Every policy once, small Llama, 16,384 tokens",
            rounds=2,
            plan=predicted.arms,
            alive=5,
        ),
        Suite(
            name="recording",
            title="What recording costs, small Llama, 8192 tokens in chunks of 512",
            rounds=32,
            plan=overhead.recording,
        ),
        Suite(
            name="operators",
            title="Operator groups, small Llama, 8192 tokens in chunks of 1024",
            rounds=4,
            plan=overhead.operators,
        ),
    )
}
