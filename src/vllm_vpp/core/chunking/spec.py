"""From what a user writes, say `{"policy": "ramp", "peak": 16384, "down": 4}`, to a policy.

Owns the registry of policies and the checks of their parameters.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from vllm_vpp.core.chunking.by_length import ByLength
from vllm_vpp.core.chunking.equal import EqualFlops, EqualTime, EqualTimeOnline, Fixed
from vllm_vpp.core.chunking.planned import DynamicProgramming, Explicit
from vllm_vpp.core.chunking.ramp import Hybrid, Ramp
from vllm_vpp.core.chunking.throttle import TokenThrottle
from vllm_vpp.core.chunking.view import Policy
from vllm_vpp.core.cost import Law, QuadraticCost
from vllm_vpp.errors import ConfigError

__all__ = ["PLANNED", "POLICIES", "make_policy", "plans_with_law"]

POLICIES: dict[str, type[Any]] = {
    "fixed": Fixed,
    "equal-time": EqualTime,
    "equal-time-online": EqualTimeOnline,
    "token-throttle": TokenThrottle,
    "dp": DynamicProgramming,
    "equal-flops": EqualFlops,
    "ramp": Ramp,
    "hybrid": Hybrid,
    "list": Explicit,
    "by-length": ByLength,
}
PLANNED = ("ramp", "hybrid")  # the planner finds their parameters where the user leaves them out
_GIVEN = {"law", "ranks"}  # not the user's to write
_QUADRATIC = {DynamicProgramming, EqualTimeOnline}  # rules that need the form of the law
_FRACTIONS = {"smoothing", "reserve", "threshold"}
_FROM_ZERO = {"up", "down", "minimum", "decodes"}


def plans_with_law(spec: Mapping[str, Any] | None) -> bool:
    """Whether the policy that a user describes plans with a cost law."""
    if spec is None:
        return False
    if spec["policy"] == "by-length":
        return any(plans_with_law(entry) for _, entry in spec["entries"])
    return any(field.name == "law" for field in fields(POLICIES[spec["policy"]]))


def make_policy(spec: Mapping[str, Any], *, law: Law | None, ranks: int) -> Policy:
    """The policy that a user describes; `law` is the cost it plans with.

    Raises ConfigError, one line, for an unknown policy, key or value, or when it needs a law and
    there is none.
    """
    rest = dict(spec)
    name = rest.pop("policy", None)
    if name not in POLICIES:
        allowed = ", ".join(POLICIES)
        raise ConfigError(f"policy={name!r}: must be one of {allowed}; choose one of them")
    kind = POLICIES[name]
    if kind is ByLength:
        return _by_length(rest, law=law, ranks=ranks)
    known = {field.name: field for field in fields(kind)}
    for key, value in rest.items():
        if key not in known or key in _GIVEN:
            allowed = ", ".join(k for k in known if k not in _GIVEN) or "nothing"
            raise ConfigError(f"{key}={value!r}: policy {name!r} takes {allowed}; correct the name")
        rest[key] = _checked(name, key, value)
    if "law" in known:
        if law is None:
            raise ConfigError(f"policy={name!r}: needs a cost model; calibrate or choose 'fixed'")
        if kind in _QUADRATIC and not isinstance(law, QuadraticCost):
            raise ConfigError(f"policy={name!r}: needs a quadratic cost law; choose 'hybrid'")
        rest["law"] = law
    if "ranks" in known:
        rest["ranks"] = ranks
    missing = [k for k, f in known.items() if f.default is MISSING and k not in rest]
    if missing:
        raise ConfigError(f"policy={name!r}: needs {', '.join(missing)}; add it")
    policy: Policy = kind(**rest)
    return policy


def _by_length(rest: dict[str, Any], *, law: Law | None, ranks: int) -> ByLength:
    """A table {"entries": [[length, spec], ...], "busy": spec}, each spec a policy."""
    entries, busy = rest.pop("entries", None), rest.pop("busy", None)
    good = isinstance(entries, list | tuple) and entries and not rest
    good = good and all(
        isinstance(entry, list | tuple)
        and len(entry) == 2
        and isinstance(entry[0], int)
        and entry[0] > 0
        and isinstance(entry[1], Mapping)
        and entry[1].get("policy") != "by-length"
        for entry in entries
    )
    if not good or len({length for length, _ in entries}) < len(entries):
        raise ConfigError(
            "policy='by-length': needs \"entries\", a list of [length in tokens, policy], each"
            " length once; correct it"
        )
    if busy is not None and not (isinstance(busy, Mapping) and busy.get("policy") != "by-length"):
        raise ConfigError(f"busy={busy!r}: must be another policy; correct it or leave it out")
    assert entries is not None
    ordered = sorted(entries, key=lambda entry: entry[0])
    return ByLength(
        entries=tuple(
            (length, make_policy(spec, law=law, ranks=ranks)) for length, spec in ordered
        ),
        busy=None if busy is None else make_policy(busy, law=law, ranks=ranks),
    )


def _checked(name: str, key: str, value: object) -> object:
    """The value if it is possible. Raises ConfigError otherwise."""
    if key == "up" and name == "equal-time":
        allowed, good = "true or false", isinstance(value, bool)
    elif key in _FRACTIONS:
        good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
        allowed = "a number from 0 to 1"
        if key == "reserve":
            good, allowed = good and value < 1, "a number from 0 to less than 1"  # type: ignore[operator]
    elif key == "chunks" and name == "list":
        sizes = list(value) if isinstance(value, list | tuple) else []
        allowed, good = "a list of whole numbers of at least 1", bool(sizes)
        good = good and all(isinstance(size, int) and size >= 1 for size in sizes)
        value = tuple(sizes)
    else:
        least = 0 if key in _FROM_ZERO else 1
        good = isinstance(value, int) and not isinstance(value, bool) and value >= least
        allowed = f"a whole number of at least {least}"
    if not good:
        raise ConfigError(f"{key}={value!r}: must be {allowed}; correct it")
    return value
