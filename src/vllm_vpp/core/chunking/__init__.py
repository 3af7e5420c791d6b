"""Chunking policies: how many tokens of a prompt the next micro-batch takes.

Owns the registry of policies and the one way to build one from what a user writes, for instance
`{"policy": "ramp", "peak": 16384, "down": 4}`. A policy is pure, sees a `View` and names a size;
`fit` makes it a legal chunk. The simulator and the engine's scheduler call `next_chunk`, nothing
else.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from vllm_vpp.core.chunking.equal import EqualFlops, EqualTime, EqualTimeOnline, Fixed
from vllm_vpp.core.chunking.planned import DynamicProgramming, Explicit
from vllm_vpp.core.chunking.ramp import Ramp
from vllm_vpp.core.chunking.view import Policy, View, fit
from vllm_vpp.core.cost import QuadraticCost
from vllm_vpp.errors import ConfigError

__all__ = ["POLICIES", "Policy", "View", "chunk_plan", "fit", "make_policy", "next_chunk"]

POLICIES: dict[str, type[Any]] = {
    "fixed": Fixed,
    "equal-time": EqualTime,
    "equal-time-online": EqualTimeOnline,
    "dp": DynamicProgramming,
    "equal-flops": EqualFlops,
    "ramp": Ramp,
    "list": Explicit,
}
_GIVEN = {"law", "ranks"}  # not the user's to write; a law may come along as plain numbers


def next_chunk(policy: Policy, view: View) -> int:
    """Tokens of the next chunk: at least 1, at most the limit and what is left of the prompt."""
    return fit(policy.size(view), view)


def chunk_plan(policy: Policy, length: int, *, limit: int, block: int = 16) -> tuple[int, ...]:
    """Chunks of a whole prompt that has the pipeline to itself."""
    sizes: list[int] = []
    at = 0
    while at < length:
        sizes.append(next_chunk(policy, View(at, length, limit, block=block)))
        at += sizes[-1]
    return tuple(sizes)


def make_policy(spec: Mapping[str, Any], *, law: QuadraticCost | None, ranks: int) -> Policy:
    """The policy that a user describes; `law` is the cost it plans with, unless the user gives one.

    Raises ConfigError, one line, for an unknown policy, key or value, or when it needs a law and
    there is none.
    """
    rest = dict(spec)
    law = _given_law(rest.pop("law")) if "law" in rest else law
    name = rest.pop("policy", None)
    if name not in POLICIES:
        allowed = ", ".join(POLICIES)
        raise ConfigError(f"policy={name!r}: must be one of {allowed}; choose one of them")
    kind = POLICIES[name]
    known = {field.name: field for field in fields(kind)}
    for key, value in rest.items():
        if key not in known or key in _GIVEN:
            allowed = ", ".join(k for k in known if k not in _GIVEN) or "nothing"
            raise ConfigError(f"{key}={value!r}: policy {name!r} takes {allowed}; correct the name")
        rest[key] = _checked(name, key, value)
    if "law" in known:
        if law is None:
            raise ConfigError(f"policy={name!r}: needs a cost model; calibrate or choose 'fixed'")
        rest["law"] = law
    if "ranks" in known:
        rest["ranks"] = ranks
    missing = [k for k, f in known.items() if f.default is MISSING and k not in rest]
    if missing:
        raise ConfigError(f"policy={name!r}: needs {', '.join(missing)}; add it")
    policy: Policy = kind(**rest)
    return policy


def _given_law(value: object) -> QuadraticCost:
    """The law that a plan was made with: {"c0": ..., "b": ..., "a": ...}."""
    names = ("c0", "b", "a")
    good = isinstance(value, Mapping) and set(value) == set(names)
    if not good or not all(_is_cost(v) for v in value.values()) or not value["b"]:  # type: ignore[attr-defined,index]
        raise ConfigError(
            f"law={value!r}: must be an object with numbers c0, b, a of at least 0, b above 0; take"
            " it from vllm-vpp plan"
        )
    assert isinstance(value, Mapping)
    return QuadraticCost(**{name: float(value[name]) for name in names})


def _is_cost(value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value < float("inf")  # type: ignore[operator]


def _checked(name: str, key: str, value: object) -> object:
    """The value if it is possible. Raises ConfigError otherwise."""
    if key == "up" and name == "equal-time":
        allowed, good = "true or false", isinstance(value, bool)
    elif key == "smoothing":
        good = isinstance(value, int | float) and 0 <= value <= 1
        allowed = "a number from 0 to 1"
    elif key == "chunks" and name == "list":
        sizes = list(value) if isinstance(value, list | tuple) else []
        allowed, good = "a list of whole numbers of at least 1", bool(sizes)
        good = good and all(isinstance(size, int) and size >= 1 for size in sizes)
        value = tuple(sizes)
    else:
        least = 0 if key in {"up", "down", "minimum"} else 1
        good = isinstance(value, int) and not isinstance(value, bool) and value >= least
        allowed = f"a whole number of at least {least}"
    if not good:
        raise ConfigError(f"{key}={value!r}: must be {allowed}; correct it")
    return value
