"""What of vLLM the plugin relies on is still there, in the form that it expects.

The first tests to look at with another vLLM: they start no engine, and name what has moved.
"""

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from vllm_vpp.errors import UnsupportedError
from vllm_vpp.plugin import hooks
from vllm_vpp.plugin.borders import BORDERS
from vllm_vpp.plugin.hooks import HOOKS, Hook

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm")

# What our classes add, for their own use; everything else must override something.
HOST = {
    "_last",
    "_meter",
    "_of_stages",
    "_record",
    "_recorder",
    "vpp_run",
    "vpp_watch",
    "_run",
    "_run_stage",
}
SCHEDULER = {
    "_cached_tokens",
    "_crowded",
    "_holding_back",
    "_limits",
    "_load",
    "_most",
    "_note",
    "_open",
    "_plan_anew",
    "_view",
    "_within",
}
OWN: dict[str, set[str]] = {
    "VPPExecutor": {"_header", "_look_up_while_waiting", "_received", "_send", "_show", "_watch"},
    "VPPRayExecutor": {
        "_header",
        "_look_up_while_waiting",
        "_received",
        "_send",
        "_show",
        "_watch",
    },
    "VPPScheduler": SCHEDULER,
    "VPPAsyncScheduler": SCHEDULER | {"_may_go_ahead"},
    "VPPCPUWorker": HOST,
    "VPPGPUWorker": HOST,
    "SparingWrapper": set(),
    "StageOutputs": set(),
}
CLASSES = {
    "VPPExecutor": "executor",
    "VPPRayExecutor": "executor_ray",
    "VPPScheduler": "scheduler",
    "VPPAsyncScheduler": "async_scheduler",
    "VPPCPUWorker": "worker_cpu",
    "VPPGPUWorker": "worker_gpu",
    "SparingWrapper": "adapters",
    "StageOutputs": "kv_transfer",
}
# Where the symbols of borders that are named by their class alone are defined.
MODULES = {
    "GroupCoordinator": "vllm.distributed.parallel_state",
    "Worker": "vllm.v1.worker.gpu_worker",
    "GPUModelRunner": "vllm.v1.worker.gpu_model_runner",
    "CompilationConfig": "vllm.config.compilation",
    "LoRAModelManager": "vllm.lora.model_manager",
    "WorkerLoRAManager": "vllm.lora.worker_manager",
    "Scheduler": "vllm.v1.core.sched.scheduler",
    "Request": "vllm.v1.request",
    "MultiprocExecutor": "vllm.v1.executor.multiproc_executor",
}


def function_of(hook: Hook) -> Callable[..., Any]:
    current = hook.owner.__dict__[hook.attribute]
    function = current.fget if isinstance(current, property) else current
    assert callable(function)
    return function


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.attribute)
def test_a_wrapped_symbol_has_the_recorded_signature(hook: Hook) -> None:
    hooks.uninstall()
    hook.check()
    required = [
        name
        for name, parameter in inspect.signature(function_of(hook)).parameters.items()
        if parameter.default is parameter.empty
    ]
    assert tuple(required) == hook.parameters


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.attribute)
def test_a_changed_signature_of_a_wrapped_symbol_is_noticed(
    hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(this: Any, *rest: Any) -> Any:
        raise AssertionError((this, rest))

    hooks.uninstall()
    as_before = isinstance(hook.owner.__dict__[hook.attribute], property)
    monkeypatch.setattr(hook.owner, hook.attribute, property(changed) if as_before else changed)
    with pytest.raises(UnsupportedError, match="expected"):
        hook.check()
    assert not hook.installed


def our_class(name: str) -> type:
    found = getattr(import_module(f"vllm_vpp.plugin.{CLASSES[name]}"), name)
    assert isinstance(found, type)
    return found


def upstream(cls: type, name: str) -> Any:
    """The attribute of that name of the nearest class of vLLM, None where there is none."""
    for base in cls.__mro__:
        if base.__module__.startswith("vllm.") and name in base.__dict__:
            return base.__dict__[name]
    return None


def our_methods(cls: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for base in cls.__mro__:
        if base.__module__.startswith("vllm_vpp."):
            found = {
                name: value
                for name, value in base.__dict__.items()
                if inspect.isfunction(value) or isinstance(value, (property, classmethod))
            } | found
    return found


@pytest.mark.parametrize("name", CLASSES)
def test_what_is_overridden_exists_upstream(name: str) -> None:
    cls = our_class(name)
    added = {method for method in our_methods(cls) if upstream(cls, method) is None}
    assert added == OWN[name]


@pytest.mark.parametrize("name", CLASSES)
def test_an_override_takes_what_vllm_passes(name: str) -> None:
    cls = our_class(name)
    for method, ours in our_methods(cls).items():
        theirs = upstream(cls, method)
        if not (inspect.isfunction(ours) and inspect.isfunction(theirs)):
            continue
        mine = inspect.signature(ours).parameters
        if any(p.kind is p.VAR_POSITIONAL for p in mine.values()):
            continue
        wanted = [
            n
            for n, p in inspect.signature(theirs).parameters.items()
            if p.kind is p.POSITIONAL_OR_KEYWORD
        ]
        open_ended = any(p.kind is p.VAR_KEYWORD for p in mine.values())
        missing = wanted[1:] if not open_ended else []
        names = list(mine)[1:]
        # a parameter may be renamed where vLLM passes it by position
        assert len(names) >= len(missing), f"{name}.{method} takes {names}, vLLM {missing}"


def roots() -> list[tuple[str, str]]:
    """Each border as (where it is defined, the name of a variable there)."""
    found = []
    for border in BORDERS:
        owner, _, names = border.symbol.rpartition(".")
        found += [(owner, name) for name in names.split(", ")]
    return found


@pytest.mark.parametrize(("owner", "name"), roots(), ids=lambda text: text.rpartition(".")[2])
def test_state_that_is_read_or_set_exists(owner: str, name: str) -> None:
    if owner.startswith("vllm."):
        assert hasattr(import_module(owner), name)
        return
    source = inspect.getsource(getattr(import_module(MODULES[owner]), owner))
    assert f"self.{name}" in source or f"{name}:" in source, f"{owner}.{name} has gone"
