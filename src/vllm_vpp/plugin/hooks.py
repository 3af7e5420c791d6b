"""Every function of vLLM that this package wraps, as records.

Owns wrapping and undoing. docs/vllm.md is generated from `HOOKS`. Anything that can be done by a
documented extension point or by subclassing is not here.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm_vpp.errors import UnsupportedError

__all__ = ["HOOKS", "Hook", "install", "uninstall"]

_MARK = "__vllm_vpp_original__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """One wrapped attribute of a vLLM class.

    `target` is "module:Class.attribute"; `parameters` are the names its signature must begin with,
    `replace` builds the replacement from the original function.
    """

    target: str
    reason: str
    upstream: str
    remove_when: str
    parameters: tuple[str, ...]
    replace: Callable[[Callable[..., Any]], Callable[..., Any]]

    @property
    def owner(self) -> type:
        """The class that holds the attribute."""
        import importlib

        module, path = self.target.split(":")
        found: Any = importlib.import_module(module)
        for name in path.split(".")[:-1]:
            found = getattr(found, name)
        assert isinstance(found, type)
        return found

    @property
    def attribute(self) -> str:
        """Name of the attribute."""
        return self.target.rsplit(".", 1)[1]

    @property
    def installed(self) -> bool:
        """Whether the attribute is wrapped already."""
        current = self.owner.__dict__.get(self.attribute)
        return hasattr(current.fget if isinstance(current, property) else current, _MARK)

    def check(self) -> None:
        """Raise UnsupportedError unless this vLLM still has the function in the expected form."""
        current = self.owner.__dict__.get(self.attribute)
        function = current.fget if isinstance(current, property) else current
        if not callable(function):
            raise UnsupportedError(
                f"{self.target}: not in this vLLM; vllm-vpp supports vLLM 0.32; install that"
            )
        found = tuple(inspect.signature(function).parameters)[: len(self.parameters)]
        if found != self.parameters:
            raise UnsupportedError(
                f"{self.target}: takes {found} in this vLLM, expected {self.parameters}; "
                "vllm-vpp supports vLLM 0.32; install that"
            )

    def install(self) -> None:
        """Wrap once; later calls do nothing."""
        if self.installed:
            return
        self.check()
        current = self.owner.__dict__.get(self.attribute)
        function = current.fget if isinstance(current, property) else current
        assert function is not None
        wrapped = functools.wraps(function)(self.replace(function))
        setattr(wrapped, _MARK, current)
        setattr(
            self.owner,
            self.attribute,
            property(wrapped) if isinstance(current, property) else wrapped,
        )

    def uninstall(self) -> None:
        """Put the original back; does nothing when not installed."""
        current = self.owner.__dict__.get(self.attribute)
        function = current.fget if isinstance(current, property) else current
        if hasattr(function, _MARK):
            setattr(self.owner, self.attribute, getattr(function, _MARK))


def _create_engine_config(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        from vllm_vpp.plugin import engine_config

        if not engine_config.wants_vpp(self.additional_config):
            return original(self, *args, **kwargs)
        return engine_config.create(self, lambda: original(self, *args, **kwargs))

    return create_engine_config


def _max_concurrent_batches(original: Callable[..., Any]) -> Callable[..., Any]:
    def max_concurrent_batches(self: Any) -> int:
        from vllm_vpp.plugin import engine_config

        if not engine_config.wants_vpp(self.additional_config):
            return int(original(self))
        return engine_config.in_flight(self)

    return max_concurrent_batches


HOOKS = (
    Hook(
        target="vllm.engine.arg_utils:EngineArgs.create_engine_config",
        reason="turns the one switch into an executor, a worker class and a scheduler class, and "
        "refuses what is not supported, before any process is started",
        upstream="vllm/engine/arg_utils.py",
        remove_when="vLLM lets a general plugin take part in building the config",
        parameters=("self",),
        replace=_create_engine_config,
    ),
    Hook(
        target="vllm.config.vllm:VllmConfig.max_concurrent_batches",
        reason="the V needs more than P micro-batches in flight, and vLLM derives the number from "
        "P alone",
        upstream="vllm/config/vllm.py",
        remove_when="the number of concurrent batches is a setting, or asked of the executor",
        parameters=("self",),
        replace=_max_concurrent_batches,
    ),
)


def install() -> None:
    """Install every hook, or none where one is impossible; re-entrant."""
    missing = [hook for hook in HOOKS if not hook.installed]
    for hook in missing:
        hook.check()
    for hook in missing:
        hook.install()


def uninstall() -> None:
    """Undo `install`."""
    for hook in HOOKS:
        hook.uninstall()
