"""What a device can do, as data with sources.

Owns the profile record, the shipped file data/hardware.json, and reading a user's own profile.
"""

import json
from dataclasses import MISSING, dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from vllm_vpp.errors import InputError

__all__ = ["Hardware", "read_hardware", "shipped_hardware"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One device. Peaks are of the vendor; `matmul`, `attention`: share of `flops` reached.

    flops: FLOP/s, dense, bf16. memory: bytes. memory_bandwidth, link_bandwidth (within a node, one
    way), network_bandwidth (between nodes): bytes per second. link_latency, network_latency (of one
    message), layer_overhead (launches of one layer): seconds. half_tokens: tokens at which a matrix
    product reaches half of its best rate: a chunk of x tokens costs as much as x + half_tokens.
    """

    name: str
    flops: float
    memory: float
    memory_bandwidth: float
    link_bandwidth: float
    network_bandwidth: float
    link_latency: float
    network_latency: float
    matmul: float
    attention: float
    half_tokens: float
    layer_overhead: float
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in {"name", "sources"}:
                continue
            may_be_zero = field.name.endswith(("latency", "overhead", "tokens"))
            good = isinstance(value, int | float) and (value > 0 or (may_be_zero and value == 0))
            if not good or value == float("inf"):
                raise InputError(
                    f"hardware {self.name!r}: {field.name}={value!r}: must be a positive number;"
                    " correct the profile"
                )
        for name in ("matmul", "attention"):
            if getattr(self, name) > 1:
                raise InputError(
                    f"hardware {self.name!r}: {name}={getattr(self, name)}: must be a share of"
                    " flops from 0 to 1; correct the profile"
                )


def _shipped() -> dict[str, Any]:
    text = (files("vllm_vpp.sim") / "data" / "hardware.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return {name: value for name, value in data.items() if not name.startswith("_")}


def shipped_hardware() -> list[str]:
    """Names of the profiles that come with the package."""
    return sorted(_shipped())


def read_hardware(name: str) -> Hardware:
    """A shipped profile, or a JSON file with the same fields. Raises InputError, one line."""
    shipped = _shipped()
    if name.lower() in shipped:
        return _build(name.lower(), shipped[name.lower()])
    path = Path(name)
    if path.suffix != ".json":
        raise InputError(
            f"hardware={name!r}: must be one of {', '.join(sorted(shipped))}, or a .json profile;"
            " choose one of them"
        )
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"hardware={name!r}: cannot be read ({error.strerror}); give an existing file"
        ) from None
    except ValueError as error:
        raise InputError(f"hardware={name!r}: not JSON ({error}); correct the file") from None
    if not isinstance(data, dict):
        raise InputError(f"hardware={name!r}: must hold a JSON object; correct the file")
    return _build(str(data.pop("name", path.stem)), data)


def _build(name: str, data: dict[str, Any]) -> Hardware:
    known = {f.name: f for f in fields(Hardware) if f.name != "name"}
    unknown = sorted(set(data) - set(known))
    missing = sorted(k for k, f in known.items() if f.default is MISSING and k not in data)
    if unknown or missing:
        what = f"unknown {unknown[0]}" if unknown else f"missing {missing[0]}"
        raise InputError(
            f"hardware {name!r}: {what}; must have exactly {', '.join(known)}; correct the profile"
        )
    sources = tuple(map(str, data.get("sources", ())))
    return Hardware(name=name, **{k: v for k, v in data.items() if k != "sources"}, sources=sources)
