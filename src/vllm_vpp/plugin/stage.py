"""One stage of a process: a stock worker and model runner that believe to be a pipeline rank.

Owns the per-stage copies of vLLM's worker and config, and the swap of vLLM's global pipeline group
and KV connector around each call. Leaves transfers to `transport`, and to the executor what runs.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.v1.worker.worker_base import WorkerBase

from vllm_vpp.plugin.kv_transfer import StageConnector
from vllm_vpp.plugin.settings import KEY
from vllm_vpp.plugin.transport import Arrival, StageGroup

__all__ = ["Stage", "stage_config"]


def stage_config(config: VllmConfig, stage: int) -> VllmConfig:
    """A shallow copy whose registries of layers and compile cache belong to `stage` alone."""
    own = copy.copy(config)
    own.compilation_config = copy.copy(config.compilation_config)
    own.compilation_config.static_forward_context = {}
    own.compilation_config.static_all_moe_layers = []
    assert isinstance(config.additional_config, dict)
    own.additional_config = {
        **config.additional_config,
        KEY: {**config.additional_config[KEY], "stage": stage},
    }
    return own


@dataclass(frozen=True, slots=True)
class Stage:
    """`worker` is a copy of the process's worker, of the platform's own class."""

    index: int
    worker: Any
    group: StageGroup
    connector: StageConnector = field(default_factory=StageConnector)

    @classmethod
    def make(cls, host: WorkerBase, base: type[WorkerBase], group: StageGroup) -> "Stage":
        """A stage of `host`, whose platform class is `base`, with a model runner of its own."""
        worker: Any = copy.copy(host)
        worker.__class__ = base
        config = stage_config(host.vllm_config, group.rank_in_group)
        worker.vllm_config, worker.compilation_config = config, config.compilation_config
        worker._pp_send_work = []
        stage = cls(group.rank_in_group, worker, group)
        with stage.active():
            worker.model_runner = type(worker.model_runner)(config, worker.device)
        _guard_input_buffers(worker.model_runner, worker.device)
        group.runner = worker.model_runner
        return stage

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make this stage what vLLM's globals speak of, for one call."""
        with self.in_group(), set_current_vllm_config(self.worker.vllm_config):
            yield

    @contextmanager
    def in_group(self) -> Iterator[None]:
        """Swap pipeline group and KV connector only: enough to run what has been loaded."""
        saved, parallel_state._PP = parallel_state._PP, self.group
        try:
            with self.connector.current():
                yield
        finally:
            parallel_state._PP = saved

    def ensure_input_buffers(self) -> None:
        """Allocate what vLLM's compile warm-up would: eager mode on the CPU never does."""
        runner = self.worker.model_runner
        if self.group.is_first_rank or runner.intermediate_tensors is not None:
            return
        runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
            batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
        )

    def run(self, scheduler_output: Any, arrival: Arrival | None) -> Any:
        """Run one micro-batch; returns what vLLM's worker returns (None but for empty ones)."""
        self.group.arrival = arrival
        # the transport keeps sends alive; compute never waits for one
        self.worker._pp_send_work = []
        with self.in_group():
            return self.worker.execute_model(scheduler_output)

    def sample(self, grammar_output: Any) -> Any:
        """Finish the micro-batch just run: sample on the last stage.

        On another one vLLM's runner returns what the KV connector has to report, if anything.
        """
        with self.in_group():
            return self.worker.sample_tokens(grammar_output)


def _guard_input_buffers(runner: Any, device: torch.device) -> None:
    """Let a runner wait until its device has read the inputs of the step before.

    vLLM's copies them from buffers that it fills anew, without waiting, and guards these for
    asynchronous scheduling only: else few enough steps follow each other. Here a stage may run
    several while its device is busy with the first. On a CPU nothing is left to read.
    """
    if device.type != "cpu" and runner.prepare_inputs_event is None:
        runner.prepare_inputs_event = torch.Event(device, blocking=True)


def bytes_per_block(specs: dict[str, Any]) -> int:
    """KV bytes that one block takes over the layers of a stage."""
    return sum(spec.page_size_bytes for spec in specs.values())


def divide_memory(available: int, stages: list[dict[str, Any]]) -> list[int]:
    """Share a rank's KV memory among its stages so that all hold the same number of blocks."""
    weights = [bytes_per_block(specs) for specs in stages]
    total = sum(weights)
    if not total:
        return [available // len(stages)] * len(stages)
    return [available * weight // total for weight in weights]
