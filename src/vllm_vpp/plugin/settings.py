"""The `vpp` part of `--additional-config`: what a user may write, and what it resolves to.

Owns parsing and its error messages. Knows nothing of vLLM; whether vLLM's own settings fit is
checked in `support`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vllm_vpp.core.chunking import PLANNED, Policy, make_policy
from vllm_vpp.core.cost import Law, QuadraticCost
from vllm_vpp.core.layout import Layout, LayoutKind
from vllm_vpp.core.order import OrderName
from vllm_vpp.errors import ConfigError

__all__ = ["AUTO", "KEY", "Cost", "Resolved", "Settings", "make"]

KEY = "vpp"

AUTO: Final = "auto"

_FIXES = {
    "layout": 'write "layout": "v"',
    "sweeps": 'write "sweeps": 3, or leave it out for layouts linear, v and auto',
    "order": 'write "order": "greedy", or leave it out',
    "in_flight": "write a whole number, or leave it out for one more than the number of stages",
    "split": 'write one whole number per stage, or "split": "auto" for a balanced one',
    "chunking": 'write "chunking": {"policy": "ramp"}, or leave it out',
    "packing": 'write "packing": false, or leave it out',
    "prompts": 'write "prompts": [8192, 65536], or leave it out for all lengths',
    "cost": 'write "cost": {"c0": 0.3, "b": 3e-4, "a": 2e-7}, or leave it out',
    "learn": 'write "learn": false, or leave it out',
    "metrics": 'write "metrics": false, or leave it out',
    "itl_target_ms": 'write "itl_target_ms": 200, or leave it out for no bound',
    "trace_dir": "write the path of a folder, or leave it out to record nothing",
    "trace_limit_mib": 'write "trace_limit_mib": 256, or leave it out for that',
}
_ALLOWED = {
    "layout": ", ".join([*LayoutKind, AUTO]),
    "sweeps": "a whole number from 1 to 16",
    "order": ", ".join(OrderName),
    "in_flight": "a whole number from 2 to 1024",
    "split": '"auto" or a list of whole numbers, each at least 1',
    "chunking": "an object that names a policy",
    "packing": "true or false",
    "prompts": "a list of 1 to 32 lengths in tokens, each at least 1",
    "cost": "an object with the seconds c0, b, a and perhaps gamma, none negative, b above 0",
    "learn": "true or false",
    "metrics": "true or false",
    "itl_target_ms": "a number of milliseconds, above 0 and at most 3600000",
    "trace_dir": "a path",
    "trace_limit_mib": "a whole number of MiB per process, from 1 to 1048576",
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


class Resolved(BaseModel):
    """What start-up made of the user's settings; not the user's to write.

    `law`: the cost law of an earlier start, in seconds. `planned`: whether `chunking` is the
    planner's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    sweeps: int
    layers: list[int]
    chunking: dict[str, Any] | None = None
    law: Cost | None = None
    planned: bool = False


class Settings(BaseModel):
    """Validated settings; frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    layout: str = LayoutKind.V.value
    sweeps: Annotated[int, Field(ge=1, le=16)] | None = None
    order: str = OrderName.GREEDY.value
    in_flight: Annotated[int, Field(ge=2, le=1024)] | None = None
    split: Literal["auto"] | list[Annotated[int, Field(ge=1)]] = AUTO
    chunking: dict[str, Any] | None = None
    packing: bool = True
    prompts: (
        Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1, max_length=32)] | None
    ) = None
    cost: Cost | None = None
    learn: bool | None = None
    metrics: bool = True
    itl_target_ms: Annotated[float, Field(gt=0, le=3_600_000, allow_inf_nan=False)] | None = None
    trace_dir: str | None = None
    trace_limit_mib: Annotated[int, Field(ge=1, le=1_048_576)] = 256
    resolved: Resolved | None = None

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
        if settings.resolved is not None:
            raise ConfigError(_unknown("resolved"))
        if settings.layout not in (*LayoutKind, AUTO):
            raise ConfigError(_message("layout", settings.layout))
        if settings.order not in tuple(OrderName):
            raise ConfigError(_message("order", settings.order))
        if settings.layout == AUTO and settings.sweeps is not None:
            raise ConfigError(_message("sweeps", settings.sweeps))
        if settings.layout == AUTO and settings.split != AUTO:
            raise ConfigError(
                f'vpp.split={settings.split}: the number of stages is not known with layout "auto";'
                " name the layout, or leave the split out"
            )
        settings._check_chunking()
        settings._check_target()
        return settings

    def _check_chunking(self) -> None:
        layout = self.layout_for(1)
        if self.chunking is not None:
            peak = {"peak": 1} if self.chunking.get("policy") in PLANNED else {}
            make(peak | self.chunking, QuadraticCost(c0=0.0, b=1.0, a=0.0), layout)

    def _check_target(self) -> None:
        if self.itl_target_ms is not None and self.cost is None and not self.learns:
            raise ConfigError(
                f"vpp.itl_target_ms={self.itl_target_ms:g}: needs to know how long a chunk takes; "
                'give "cost", or leave "learn" out'
            )

    @property
    def plans(self) -> bool:
        """Whether the planner is to be asked: for the layout, or for the size of a ramp."""
        if self.chunking is None:
            return self.layout == AUTO
        return self.chunking.get("policy") in PLANNED and "peak" not in self.chunking

    @property
    def learns(self) -> bool:
        """Whether the cost law is fitted while serving; not where the user has given one."""
        return self.learn if self.learn is not None else self.cost is None

    @property
    def trace_limit(self) -> int:
        """Bytes that the trace of a process may take."""
        return self.trace_limit_mib * 2**20

    @property
    def layers(self) -> list[int]:
        """Layers of each stage; known once resolved."""
        assert self.resolved is not None
        return self.resolved.layers

    def layout_for(self, ranks: int) -> Layout:
        """The layout on that many pipeline ranks; a V as long as the planner has not chosen."""
        if self.resolved is not None:
            return Layout(ranks, self.resolved.sweeps)
        if self.layout == AUTO:
            return Layout(ranks, 2)
        return Layout.of(self.layout, ranks, self.sweeps)

    def depth(self, layout: Layout) -> int:
        """Micro-batches that may be in flight."""
        return self.in_flight if self.in_flight is not None else layout.depth()

    def depth_beside_decodes(self, layout: Layout) -> int:
        """Micro-batches that may be in flight while requests decode beside prompts."""
        return self.in_flight if self.in_flight is not None else layout.depth_beside_decodes()

    def resolve(self, resolved: Resolved) -> "Settings":
        """A copy with what start-up has found."""
        return self.model_copy(update={"resolved": resolved})

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


def make(chunking: Mapping[str, Any] | None, law: Law, layout: Layout) -> Policy | None:
    """The chunking policy; None leaves chunks to vLLM. Raises ConfigError."""
    if chunking is None:
        return None
    try:
        return make_policy(chunking, law=law, ranks=layout.ranks)
    except ConfigError as error:
        raise ConfigError(f"vpp.chunking: {error}") from None


def _message(name: str, value: object) -> str:
    return f"vpp.{name}={json.dumps(value, default=str)}: must be {_one_of(name)}; {_FIXES[name]}"


def _one_of(name: str) -> str:
    choice = name in ("layout", "order")
    return f"one of {_ALLOWED[name]}" if choice else _ALLOWED[name]


def _one_line(error: ValidationError) -> str:
    first: dict[str, Any] = dict(error.errors()[0])
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        return _unknown(name)
    return _message(name, first["input"])


def _unknown(name: str) -> str:
    known = ", ".join(_ALLOWED)
    return f"vpp.{name}: unknown key; must be one of {known}; remove it or correct its name"
