"""Suites that compare policies, each at its best on the machine at hand as the planner predicts it.

Cost laws and chunks are given here, so that every run of a suite cuts alike: laws as
`vllm-vpp calibrate` fits them to recorded runs on two cores without matrix units, chunks as the
planner finds them best with those laws.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from vllm_vpp.bench.arms import moe_arm, random_prompt, smollm2_arm, text
from vllm_vpp.bench.dtype import fast_dtype
from vllm_vpp.bench.engine import Request
from vllm_vpp.bench.suite import Plan

__all__ = ["moe", "policies", "policies_32k", "waves"]


class _Choice(NamedTuple):
    """`chunk` is the limit on a step's tokens; `chunking` cuts below it, all alike without one."""

    name: str
    chunk: int
    layout: dict[str, Any]
    chunking: dict[str, Any] | None = None

    def vpp(self, cost: dict[str, Any]) -> dict[str, Any]:
        chunking = {} if self.chunking is None else {"chunking": self.chunking}
        return {"cost": cost, **self.layout, **chunking}


_LINEAR = {"layout": "linear"}
_V = {"layout": "v"}


def _wave(sweeps: int) -> dict[str, Any]:
    return {"layout": "wave", "sweeps": sweeps}


def _ramp(peak: int, down: int, up: int) -> dict[str, Any]:
    return {"policy": "ramp", "peak": peak, "down": down, "up": up}


def _equal_time(chunk: int) -> dict[str, Any]:
    return {"policy": "equal-time", "chunk": chunk}


# With AVX-512 in bfloat16 on cores that multiply it (AVX512_BF16); c0 is of a V's four actions.
_SMOLLM2_COST = {"c0": 0.105749, "b": 4.45234e-4, "a": 3.79357e-7}
_SMOLLM2_16K = (
    _Choice("CPP", 384, _LINEAR),
    _Choice("DCPP", 1280, _LINEAR, _equal_time(1280)),
    _Choice("VPP", 1280, _V),
    _Choice("VPP + ramp", 2048, _V, _ramp(1392, 6, 1) | {"multiple": 256}),
)
_SMOLLM2_32K = (
    _Choice("CPP", 384, _LINEAR),
    _Choice("DCPP", 1536, _LINEAR, _equal_time(1536)),
    _Choice("VPP", 768, _V),
    _Choice("VPP + ramp", 2048, _V, _ramp(1840, 12, 0)),
)
_SMOLLM2_WAVES = (
    _SMOLLM2_16K[-1],
    _Choice("3 sweeps + ramp", 4096, _wave(3), _ramp(2656, 4, 0)),
    _Choice("4 sweeps + ramp", 4096, _wave(4), _ramp(4096, 6, 2)),
)


def _smollm2(tokens: int, choices: Iterable[_Choice]) -> Plan:
    arms = [smollm2_arm(c.name, c.chunk, tokens, c.vpp(_SMOLLM2_COST)) for c in choices]
    return arms, {"": [Request(prompt=text(tokens), max_tokens=8)]}


def policies() -> Plan:
    """All that compete for the shortest wait, at 16,000 tokens."""
    return _smollm2(16_000, _SMOLLM2_16K)


def policies_32k() -> Plan:
    """The same at 32,000 tokens, where attention dwarfs what a chunk costs by itself."""
    return _smollm2(32_000, _SMOLLM2_32K)


def waves() -> Plan:
    """More sweeps than the V's two, at 16,000 tokens."""
    return _smollm2(16_000, _SMOLLM2_WAVES)


# With AVX-512 in bfloat16 and with AVX2 in float32, where it is a fit to the chunk times of suite
# `chunks`: measured with 256 experts, c0 scaled to 192. The chunks below are the best of every 64
# tokens by the latter law.
_MOE_COST = {
    "bfloat16": {"c0": 0.0285, "b": 2.0134e-4, "a": 1.0776e-7},
    "float32": {"c0": 0.052, "b": 2.7625e-4, "a": 2.4069e-7},
}
_MOE = {
    8000: (
        _Choice("CPP", 512, _LINEAR),
        _Choice("DCPP", 1152, _LINEAR, _equal_time(1152)),
        _Choice("VPP", 768, _V),
        _Choice("VPP + ramp", 2048, _V, _ramp(1216, 4, 2)),
    ),
    16_000: (
        _Choice("CPP", 512, _LINEAR),
        _Choice("DCPP", 1408, _LINEAR, _equal_time(1408)),
        _Choice("VPP", 1280, _V),
        _Choice("VPP + ramp", 2048, _V, _ramp(1296, 6, 2) | {"multiple": 256}),
    ),
    32_000: (
        _Choice("CPP", 512, _LINEAR),
        _Choice("DCPP", 1664, _LINEAR, _equal_time(1664)),
        _Choice("VPP", 768, _V),
        _Choice("VPP + ramp", 2048, _V, _ramp(1952, 10, 0)),
    ),
}


def moe(tokens: int) -> Callable[[], Plan]:
    """Where a chunk has a fixed cost, as on accelerators: most of its experts' weights are read."""

    def plan() -> Plan:
        law, room = _MOE_COST[fast_dtype()], tokens + 32
        arms = [moe_arm(c.name, c.vpp(law), chunk=c.chunk, length=room) for c in _MOE[tokens]]
        return arms, {"": [Request(prompt=random_prompt(tokens, 1), max_tokens=8)]}

    return plan
