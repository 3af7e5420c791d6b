"""What this package refuses to run, and why: one record per feature, checked at start-up.

Silently wrong is the only unacceptable outcome, so what is not shown to work is refused here, in
one line, before any process is started.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm import envs
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs

from vllm_vpp.errors import UnsupportedError
from vllm_vpp.plugin.log import logger
from vllm_vpp.plugin.settings import KEY

__all__ = [
    "ASYNC_SCHEDULER",
    "FOREVER_S",
    "REFUSALS",
    "Refusal",
    "check_arguments",
    "check_config",
    "several_machines",
    "worker_class",
]

ASYNC_SCHEDULER = "vllm_vpp.plugin.async_scheduler.VPPAsyncScheduler"
FOREVER_S = 10 * 365 * 24 * 3600  # what a rank waits for input, instead of gloo's half an hour

_WORKERS = {
    "vllm.v1.worker.cpu_worker.CPUWorker": "vllm_vpp.plugin.worker_cpu.VPPCPUWorker",
    "vllm.v1.worker.gpu_worker.Worker": "vllm_vpp.plugin.worker_gpu.VPPGPUWorker",
}


# Shown to work with one connector per stage. What a user brings along is the user's to know.
_CONNECTORS = ("ExampleConnector",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """`found` returns the offending value of a config, or None when there is nothing to refuse."""

    feature: str
    found: Callable[[VllmConfig], object]
    why: str
    fix: str


def _if(condition: object, value: object) -> object:
    return value if condition else None


def several_machines(config: VllmConfig) -> bool:
    """Whether ranks may be on more than one; Ray places them where it likes."""
    return config.parallel_config.nnodes > 1 or config.parallel_config.use_ray


def _schedules_ahead(config: VllmConfig) -> bool:
    return config.scheduler_config.scheduler_cls == ASYNC_SCHEDULER


def _unknown_connector(config: VllmConfig) -> object:
    transfer = config.kv_transfer_config
    if transfer is None or transfer.kv_connector_module_path:
        return None
    return _if(transfer.kv_connector not in _CONNECTORS, transfer.kv_connector or "unset")


def _offloads(config: Any) -> bool:
    return (
        config.offload_backend != "auto"
        or config.uva.cpu_offload_gb > 0
        or config.prefetch.offload_group_size > 0
    )


REFUSALS = (
    Refusal(
        feature="speculative_config",
        found=lambda c: _if(c.speculative_config, getattr(c.speculative_config, "method", True)),
        why="drafts are verified on the last stage and proposed before the first",
        fix="leave it out",
    ),
    Refusal(
        feature="async_scheduling",
        found=lambda c: _if(c.kv_transfer_config and _schedules_ahead(c), True),
        why="with a KV connector it is not shown to give the same answers",
        fix="pass --no-async-scheduling, or leave kv_transfer_config out",
    ),
    Refusal(
        feature="model runner",
        found=lambda c: _if(c.use_v2_model_runner, "V2"),
        why="it broadcasts sampled tokens inside vLLM's own pipeline group",
        fix="set VLLM_USE_V2_MODEL_RUNNER=0",
    ),
    Refusal(
        feature="kv_transfer_config",
        found=_unknown_connector,
        why="not shown to work with one connector per stage, several in a process",
        fix="use ExampleConnector, or one of your own by kv_connector_module_path",
    ),
    Refusal(
        feature="ec_transfer_config",
        found=lambda c: _if(c.ec_transfer_config, "set"),
        why="encoder outputs are not passed between stages",
        fix="leave it out",
    ),
    Refusal(
        feature="data_parallel_size",
        found=lambda c: _if(
            c.parallel_config.data_parallel_size > 1, c.parallel_config.data_parallel_size
        ),
        why="replicas would have to agree on the order of actions",
        fix="use 1",
    ),
    Refusal(
        feature="enable_expert_parallel",
        found=lambda c: c.parallel_config.enable_expert_parallel or None,
        why="its collectives are not ordered between stages",
        fix="leave it out",
    ),
    Refusal(
        feature="prefill_context_parallel_size",
        found=lambda c: _if(
            c.parallel_config.prefill_context_parallel_size > 1,
            c.parallel_config.prefill_context_parallel_size,
        ),
        why="not shown to give the same answers",
        fix="use 1",
    ),
    Refusal(
        feature="decode_context_parallel_size",
        found=lambda c: _if(
            c.parallel_config.decode_context_parallel_size > 1,
            c.parallel_config.decode_context_parallel_size,
        ),
        why="not shown to give the same answers",
        fix="use 1",
    ),
    Refusal(
        feature="trace_dir",
        found=lambda c: _if(several_machines(c), c.additional_config[KEY].get("trace_dir")),
        why="a trace of several machines (Ray's may be) would compare clocks that do not agree",
        fix="leave it out, or use one machine",
    ),
    Refusal(
        feature="kv_connector",
        found=lambda c: _if(
            several_machines(c), getattr(c.kv_transfer_config, "kv_connector", None)
        ),
        why="connectors are not shown to work across several machines",
        fix="leave kv_transfer_config out, or use one machine",
    ),
    Refusal(
        feature="cpu_distributed_timeout_seconds",
        found=lambda c: _if(
            c.parallel_config.cpu_distributed_timeout_seconds != FOREVER_S,
            c.parallel_config.cpu_distributed_timeout_seconds,
        ),
        why="ranks wait for input as long as the engine has nothing to do",
        fix="leave it out; VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS limits a step",
    ),
    Refusal(
        feature="multimodal model",
        found=lambda c: _if(c.model_config.is_multimodal_model, c.model_config.model),
        why="encoder outputs are not passed between stages",
        fix="pass --language-model-only if the model allows it",
    ),
    Refusal(
        feature="runner",
        found=lambda c: _if(
            c.model_config.runner_type not in ("generate", "pooling"), c.model_config.runner_type
        ),
        why="only generating and pooling are shown to give the same answers",
        fix="use --runner generate or pooling",
    ),
    Refusal(
        feature="enable_sleep_mode",
        found=lambda c: c.model_config.enable_sleep_mode or None,
        why="its allocator serves one model of a process, and a rank holds one per stage",
        fix="leave it out",
    ),
    Refusal(
        feature="enable_dbo",
        found=lambda c: c.parallel_config.enable_dbo or None,
        why="it splits a micro-batch again",
        fix="leave it out",
    ),
    Refusal(
        feature="weight_transfer_config",
        found=lambda c: _if(c.weight_transfer_config, "set"),
        why="weights are updated in one model of a process, and a rank holds one per stage",
        fix="leave it out",
    ),
    Refusal(
        feature="cpu_offload_gb",
        found=lambda c: _if(_offloads(c.offload_config), "set"),
        why="the offloader serves one model of a process, and a rank holds one per stage",
        fix="leave it and the other offload options out",
    ),
    Refusal(
        feature="enable_prompt_embeds",
        found=lambda c: c.model_config.enable_prompt_embeds or None,
        why="not shown to give the same answers",
        fix="leave it out",
    ),
)


def check_arguments(args: EngineArgs) -> None:
    """Refuse what vLLM would override or reject with a message about something else."""
    backend = args.distributed_executor_backend
    if backend not in (None, "mp", "ray"):
        name = backend if isinstance(backend, str) else getattr(backend, "__name__", backend)
        raise UnsupportedError(
            f"distributed_executor_backend={name}: vpp brings its own; must be mp or ray; "
            "leave it out"
        )
    if backend == "ray" and not envs.VLLM_USE_RAY_V2_EXECUTOR_BACKEND:
        raise UnsupportedError(
            "VLLM_USE_RAY_V2_EXECUTOR_BACKEND=0: not supported with vpp: that executor has no "
            "message queues; leave it out"
        )
    if args.enable_chunked_prefill is False:
        raise UnsupportedError(
            "enable_chunked_prefill=False: not supported with vpp: without chunks there is nothing "
            "to pipeline; leave it out"
        )
    if args.scheduler_cls is not None:
        raise UnsupportedError(
            f"scheduler_cls={args.scheduler_cls}: vpp brings its own; must be left out; "
            "leave it out"
        )


def check_config(config: VllmConfig) -> None:
    """Raise UnsupportedError for the first feature that is refused.

    Warns where the platform has switched chunks off by itself (latent attention on a CPU): answers
    are right, but a prompt is one micro-batch and gains nothing.
    """
    for refusal in REFUSALS:
        value = refusal.found(config)
        if value is not None:
            raise _refused(refusal, value)
    if not config.scheduler_config.enable_chunked_prefill:
        logger.warning(
            "vpp: this platform runs the model without chunks: a prompt is not pipelined"
        )


def _refused(refusal: Refusal, value: Any) -> UnsupportedError:
    return UnsupportedError(
        f"{refusal.feature}={value}: not supported with vpp: {refusal.why}; {refusal.fix}"
    )


def worker_class(name: str) -> str:
    """Our class over the platform's worker class. Raises UnsupportedError for an unknown worker."""
    if name in _WORKERS.values():
        return name
    if name not in _WORKERS:
        raise UnsupportedError(
            f"worker_cls={name}: not supported with vpp; must be one of {', '.join(_WORKERS)}; "
            "leave worker_cls out"
        )
    return _WORKERS[name]
