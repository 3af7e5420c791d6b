"""The `vpp` part of `--additional-config`: what a user may write, and what it resolves to.

Owns parsing and its error messages. Knows nothing of vLLM; whether vLLM's own settings fit is
checked in `support`.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vllm_vpp.core.chunking import Policy, make_policy
from vllm_vpp.core.cost import QuadraticCost
from vllm_vpp.core.layout import Layout, LayoutKind
from vllm_vpp.core.order import OrderName
from vllm_vpp.errors import ConfigError

__all__ = ["KEY", "Settings"]

KEY = "vpp"

_FIXES = {
    "layout": 'write "layout": "v"',
    "sweeps": 'write "sweeps": 3, or leave it out for layouts linear and v',
    "order": 'write "order": "greedy", or leave it out',
    "in_flight": "write a whole number, or leave it out for one more than the number of stages",
    "trace_dir": "write the path of a folder, or leave it out to record nothing",
    "layers": "write one whole number per stage, or leave it out for a balanced split",
    "chunking": 'write "chunking": {"policy": "fixed", "chunk": 2048}, or leave it out',
    "cost": 'write "cost": {"c0": 0.3, "b": 3e-4, "a": 2e-7}, or leave it out',
}
_ALLOWED = {
    "layout": ", ".join(LayoutKind),
    "sweeps": "a whole number from 1 to 16",
    "order": ", ".join(OrderName),
    "in_flight": "a whole number from 2 to 1024",
    "trace_dir": "a path",
    "layers": "a list of whole numbers, each at least 1",
    "chunking": "an object that names a policy",
    "cost": "an object with the seconds c0, b, a and perhaps gamma, none negative, b above 0",
}


class Cost(BaseModel):
    """Whole-model cost of a chunk (`core.cost.QuadraticCost`), in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    c0: Annotated[float, Field(ge=0)] = 0.0
    b: Annotated[float, Field(gt=0)]
    a: Annotated[float, Field(ge=0)]
    gamma: Annotated[float, Field(ge=0)] = 0.0

    def model(self) -> QuadraticCost:
        """The cost model."""
        return QuadraticCost(c0=self.c0, b=self.b, a=self.a, gamma=self.gamma)


class Settings(BaseModel):
    """Validated settings; frozen. `layers` is filled in at start-up when the user leaves it out."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    layout: str = LayoutKind.V.value
    sweeps: Annotated[int, Field(ge=1, le=16)] | None = None
    order: str = OrderName.GREEDY.value
    in_flight: Annotated[int, Field(ge=2, le=1024)] | None = None
    trace_dir: str | None = None
    layers: list[Annotated[int, Field(ge=1)]] | None = None
    chunking: dict[str, Any] | None = None
    cost: Cost | None = None

    @classmethod
    def parse(cls, value: object) -> "Settings":
        """Settings from the user's JSON value. Raises ConfigError, one line, for anything else."""
        if not isinstance(value, Mapping):
            raise ConfigError(
                f'vpp={value!r}: must be a JSON object such as {{"layout": "v"}}; write that'
            )
        try:
            settings = cls.model_validate(dict(value))
        except ValidationError as error:
            raise ConfigError(_one_line(error)) from None
        for name, allowed in (("layout", LayoutKind), ("order", OrderName)):
            if getattr(settings, name) not in tuple(allowed):
                raise ConfigError(_message(name, getattr(settings, name)))
        settings.layout_for(1)
        if settings.chunking is not None:
            settings.policy(QuadraticCost(c0=0.0, b=1.0, a=0.0), settings.layout_for(1))
        return settings

    def policy(self, law: QuadraticCost, layout: Layout) -> Policy | None:
        """The chunking policy; None leaves chunks to vLLM's own scheduler."""
        if self.chunking is None:
            return None
        try:
            return make_policy(self.chunking, law=law, ranks=layout.ranks)
        except ConfigError as error:
            raise ConfigError(f"vpp.chunking: {error}") from None

    def layout_for(self, ranks: int) -> Layout:
        """The layout on that many pipeline ranks."""
        return Layout.of(self.layout, ranks, self.sweeps)

    def depth(self, layout: Layout) -> int:
        """Micro-batches that may be in flight."""
        return self.in_flight if self.in_flight is not None else layout.depth()

    def with_layers(self, layers: Sequence[int]) -> "Settings":
        """A copy with the layers of each stage filled in."""
        return self.model_copy(update={"layers": list(layers)})

    def with_trace_dir(self) -> "Settings":
        """A copy whose trace folder is absolute and exists, private to its owner."""
        if self.trace_dir is None:
            return self
        folder = Path(self.trace_dir).expanduser().absolute()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"vpp.trace_dir={self.trace_dir!r}: cannot be created ({error.strerror}); "
                "must be a writable folder; choose another"
            ) from None
        return self.model_copy(update={"trace_dir": str(folder)})


def _message(name: str, value: object) -> str:
    return f"vpp.{name}={json.dumps(value, default=str)}: must be {_one_of(name)}; {_FIXES[name]}"


def _one_of(name: str) -> str:
    choice = name in ("layout", "order")
    return f"one of {_ALLOWED[name]}" if choice else _ALLOWED[name]


def _one_line(error: ValidationError) -> str:
    first: dict[str, Any] = dict(error.errors()[0])
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        known = ", ".join(Settings.model_fields)
        return f"vpp.{name}: unknown key; must be one of {known}; remove it or correct its name"
    return _message(name, first["input"])
