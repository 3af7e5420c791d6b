"""From the user's switch to a vLLM config that runs on virtual stages.

Owns the translation before and after vLLM builds its config. What cannot run is refused in
`support`; what the user left open is settled in `startup`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.executor.abstract import Executor

from vllm_vpp.core.cost import QuadraticCost, StageCost
from vllm_vpp.core.layout import Layout
from vllm_vpp.plugin import support
from vllm_vpp.plugin.costs import flops_cost
from vllm_vpp.plugin.log import logger
from vllm_vpp.plugin.settings import KEY, Settings

__all__ = ["cost_of", "create", "in_flight", "law_of", "layout_of", "settings_of", "wants_vpp"]


def wants_vpp(additional_config: object) -> bool:
    """Whether the user asked for this package."""
    return isinstance(additional_config, Mapping) and KEY in additional_config


def settings_of(config: VllmConfig) -> Settings:
    """Settings of a config that `wants_vpp`, as `create` left them."""
    return Settings.model_validate(config.additional_config[KEY])


def layout_of(config: VllmConfig) -> Layout:
    """Layout of a config that `wants_vpp`."""
    return settings_of(config).layout_for(config.parallel_config.pipeline_parallel_size)


def in_flight(config: VllmConfig) -> int:
    """Micro-batches that may be in flight."""
    return settings_of(config).depth(layout_of(config))


def law_of(config: VllmConfig) -> QuadraticCost:
    """Law that the virtual clock and chunking start with.

    The user's, else what an earlier start has learned, else from the model's FLOPs.
    """
    settings = settings_of(config)
    assert settings.resolved is not None
    given = settings.cost or settings.resolved.law
    return given.model() if given is not None else flops_cost(config)


def cost_of(config: VllmConfig) -> StageCost:
    """`law_of`, divided over the stages."""
    return StageCost.by_layers(law_of(config), settings_of(config).layers)


def create(args: EngineArgs, build: Callable[[], VllmConfig]) -> VllmConfig:
    """Let vLLM build the config for `args` with this package's classes in place.

    Raises ConfigError or UnsupportedError, one line each, before any process is started.
    """
    from vllm_vpp.plugin.startup import resolve

    assert isinstance(args.additional_config, Mapping)
    settings = Settings.parse(args.additional_config[KEY])
    support.check_arguments(args)
    settings = settings.with_trace_dir()
    changed: dict[str, Any] = {
        # with several nodes, vLLM accepts no class here
        "distributed_executor_backend": args.distributed_executor_backend or "mp",
        "scheduler_cls": "vllm_vpp.plugin.scheduler.VPPScheduler",
        "async_scheduling": False,  # runners work as ever, see `ahead`; ours is a scheduler class
        "additional_config": {
            **args.additional_config,
            KEY: settings.model_dump(exclude_none=True),
        },
    }
    saved = {name: getattr(args, name) for name in changed}
    try:
        for name, value in changed.items():
            setattr(args, name, value)
        config = build()
    finally:
        for name, value in saved.items():
            setattr(args, name, value)
    if args.async_scheduling and config.model_config.runner_type != "pooling":
        config.scheduler_config.scheduler_cls = support.ASYNC_SCHEDULER
        logger.info("vpp: asynchronous scheduling: decode steps may go ahead of their tokens")
    support.check_config(config)
    config.parallel_config.distributed_executor_backend = _executor(config)
    config.parallel_config.cpu_distributed_timeout_seconds = support.FOREVER_S
    config.parallel_config.worker_cls = support.worker_class(config.parallel_config.worker_cls)
    settings = settings.resolve(resolve(config, settings))
    config.additional_config = {
        **args.additional_config,
        KEY: settings.model_dump(exclude_none=True),
    }
    return config


def _executor(config: VllmConfig) -> type[Executor]:
    if config.parallel_config.use_ray:
        from vllm_vpp.plugin.executor_ray import VPPRayExecutor

        return VPPRayExecutor
    from vllm_vpp.plugin.executor import VPPExecutor

    return VPPExecutor
