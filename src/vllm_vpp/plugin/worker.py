"""A process that hosts several stages: a mixin over the platform's own worker class.

Owns which stage a call is meant for. Loading, KV caches and warm-up are the platform's, once per
stage; running follows the executor's messages. Mirrors vllm/v1/worker/gpu_worker.py.
"""

import os
import pickle
import time
from collections import deque
from typing import Any

import torch
from vllm.config import CUDAGraphMode
from vllm.distributed import parallel_state
from vllm.v1.worker.worker_base import CompilationTimes, WorkerBase

from vllm_vpp.errors import UnsupportedError
from vllm_vpp.lifetime import end_process, end_with_parent
from vllm_vpp.plugin import engine_config, partition
from vllm_vpp.plugin.adapters import AdapterHost, spare_other_rows
from vllm_vpp.plugin.ahead import cut_dropped, fill
from vllm_vpp.plugin.board import Board
from vllm_vpp.plugin.clock import Clock
from vllm_vpp.plugin.log import logger
from vllm_vpp.plugin.message import Actions, Reply, Step, Took
from vllm_vpp.plugin.meter import RankMeter
from vllm_vpp.plugin.recorder import Recorder
from vllm_vpp.plugin.stage import Stage, divide_memory
from vllm_vpp.plugin.support import several_machines
from vllm_vpp.plugin.transport import Arrival, Transport

__all__ = ["StageHost"]


def _refused(name: str) -> Any:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise UnsupportedError(
            f"{name}: not supported with vpp: it acts on one model of a process, and a rank holds "
            'one per stage; leave out "vpp"'
        )

    return refuse


class StageHost(AdapterHost):
    """Mixin: put it before the platform's worker class and name that class in `base`."""

    base: type[WorkerBase]
    vllm_config: Any
    device: torch.device
    profiler: Any

    def init_device(self) -> None:
        """Start the device as the platform does, then one model runner per stage."""
        end_with_parent(asks=False)  # vLLM asks; stuck in a library, nobody hears it
        super().init_device()  # type: ignore[misc]  # the platform's class comes next in the order
        self.settings = engine_config.settings_of(self.vllm_config)
        self.layout = engine_config.layout_of(self.vllm_config)
        os.environ[partition.ENV] = ",".join(map(str, self.settings.layers))
        graphs = self.vllm_config.compilation_config.cudagraph_mode not in (
            None,
            CUDAGraphMode.NONE,
        )
        # on another machine nobody can close the pipe that tells a rank to end
        peer_ends = end_process if several_machines(self.vllm_config) else None
        self.transport = Transport(self.layout, copies=graphs, peer_ends=peer_ends)
        assert isinstance(self, WorkerBase)
        self.stages = {s: Stage.make(self, self.base, g) for s, g in self.transport.groups.items()}
        self.model_runner = self._last.worker.model_runner
        self.steps: dict[int, deque[Step]] = {stage: deque() for stage in self.stages}
        self.recorder = self._recorder()
        self.clock = Clock(self.device)
        self._took: list[Took] = []  # until the next reply
        self.meter = self._meter()
        self._owned = frozenset(self.stages)
        tensor_rank = parallel_state.get_tp_group().rank_in_group
        self._replies = self.layout.stages - 1 in self._owned and tensor_rank == 0
        # with KV connectors: outputs of this rank's stages, by micro-batch
        self._outputs: dict[int, list[Any]] | None = (
            None if self.vllm_config.kv_transfer_config is None else {}
        )

    @property
    def _last(self) -> Stage:
        return self.stages[max(self.stages)]

    def _recorder(self) -> Recorder:
        first = parallel_state.get_tp_group().rank_in_group == 0
        rank = self.transport.rank
        header = {"rank": rank, "ranks": self.layout.ranks, "sweeps": self.layout.sweeps}
        folder = self.settings.trace_dir if first else None
        return Recorder(folder, f"rank{rank}", header, self.settings.trace_limit)

    def _meter(self) -> RankMeter:
        """One rank of the tensor-parallel group counts for all."""
        first = parallel_state.get_tp_group().rank_in_group == 0
        meter = RankMeter(Board.join(self.vllm_config) if first else None, self.transport.rank)
        for stage, group in self.transport.groups.items():
            if not (group.is_last_rank or self.layout.enters_by_turn(stage + 1)):
                group.on_send = meter.sender(stage + 1)
        return meter

    def load_model(self, **options: Any) -> None:
        """Load the layers of every stage."""
        for stage in self.stages.values():
            with stage.active():
                stage.worker.load_model(**options)
                spare_other_rows(stage.worker.model_runner)
                stage.ensure_input_buffers()

    def get_kv_cache_spec(self) -> list[dict[str, Any]]:
        """KV specs of each stage, in execution order."""
        specs = []
        for stage in self.stages.values():
            with stage.active():
                specs.append(stage.worker.get_kv_cache_spec())
        self._specs = specs
        return specs

    def determine_available_memory(self) -> list[int]:
        """KV bytes of each stage: what the rank has, so divided that all hold as many blocks."""
        available = []
        for stage in self.stages.values():
            with stage.active():
                available.append(stage.worker.determine_available_memory())
        return divide_memory(min(available), self._specs)

    def initialize_from_config(self, configs: list[Any]) -> None:
        """Allocate the KV caches of each stage, then keep a receive posted on every channel."""
        for stage, config in zip(self.stages.values(), configs, strict=True):
            with stage.active():
                stage.worker.initialize_from_config(config)
        self.transport.start()

    def get_kv_connector_handshake_metadata(self) -> dict[tuple[int, int], Any] | None:
        """What the KV connector of each stage tells the scheduler's, by (stage, tensor rank)."""
        found: dict[tuple[int, int], Any] = {}
        for stage in self.stages.values():
            with stage.active():
                found |= stage.worker.get_kv_connector_handshake_metadata() or {}
        return found or None

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Warm up each stage; the times add up."""
        times = []
        for stage in self.stages.values():
            with stage.active():
                times.append(stage.worker.compile_or_warm_up_model())
        return CompilationTimes(
            language_model=sum(t.language_model for t in times),
            encoder=sum(t.encoder for t in times),
        )

    def update_max_model_len(self, max_model_len: int) -> None:
        """Tell every stage."""
        for stage in self.stages.values():
            stage.worker.update_max_model_len(max_model_len)

    # vLLM's own would reach the last of the rank's stages only, and say nothing
    apply_model = _refused("apply_model")
    compute_weight_checksums = _refused("compute_weight_checksums")
    reload_weights = _refused("reload_weights")
    reset_weights = _refused("reset_weights")
    save_sharded_state = _refused("save_sharded_state")
    save_tensorized_model = _refused("save_tensorized_model")
    update_config = _refused("update_config")

    def profile(self, *args: Any, **options: Any) -> None:
        """Start or stop vLLM's profiler; it counts the steps of the last of this rank's stages."""
        super().profile(*args, **options)  # type: ignore[misc]  # the platform's class comes next
        self._last.worker.profiler = self.profiler

    def shutdown(self) -> None:
        """End the receiving threads before vLLM destroys the groups that they wait on."""
        self.recorder.close()
        self.meter.close()
        for stage in self.stages.values():
            stage.connector.shutdown()
        ended = self.transport.stop()
        super().shutdown()  # type: ignore[misc]  # the platform's class comes next in the order
        if not ended:  # a thread inside a collective library cannot be cancelled
            os._exit(0)

    def vpp_run(self, message: Actions) -> Any:
        """Run this rank's actions in order; returns a `Reply` if the last stage was among them.

        With KV connectors every rank replies: the outputs of its stages for the micro-batch that
        the message finishes. They have all run, since the last stage comes after them.

        A rank that fails without being the one that replies ends its process, so that vLLM's
        monitor reports the failure at once instead of leaving the others to wait for a transfer.
        """
        try:
            return self._run(message)
        except Exception:
            if message.sampling and (self._replies or self._outputs is not None):
                raise
            logger.exception("vpp: rank %d failed; its process ends", self.transport.rank)
            raise SystemExit(1) from None

    def vpp_watch(self, *, live: bool, trace: bool) -> None:
        """Switch live numbers and recording off while serving, and on again, as far as configured.

        For vLLM's `collective_rpc`, with keyword arguments; the engine follows.
        """
        self.meter.on, self.recorder.on = live, trace

    def _run(self, message: Actions) -> Any:
        started = time.monotonic_ns()
        for step in message.steps:
            for queue in self.steps.values():
                queue.append(step)
        output, ran = None, 0
        for action in message.actions:
            if action.stage not in self._owned:
                continue
            output = self._run_stage(self.stages[action.stage], action.micro_batch, message)
            ran += 1
        self.recorder.add("m", started, time.monotonic_ns(), ran)
        for done in self.clock.take():
            self.meter.computed(done)
            if self._replies:
                self._took.append(done)
        if not message.sampling:
            return None
        self.recorder.flush()
        if self._outputs is not None:
            output = [one for index in message.sampling for one in self._outputs.pop(index)]
        elif not self._replies:
            return None
        took, self._took = tuple(self._took), []
        return Reply(output, took)

    def _run_stage(self, stage: Stage, index: int, message: Actions) -> Any:
        step = self.steps[stage.index].popleft()
        assert step.index == index, (
            f"stage {stage.index} is asked for {index}, next is {step.index}"
        )
        scheduler_output = pickle.loads(
            step.scheduler_output
        )  # our own executor's, over vLLM's own queue
        fill(scheduler_output, step.sampled)
        if not stage.group.is_last_rank:  # vLLM's runner does so itself on the last stage
            cut_dropped(stage.worker.model_runner.requests, scheduler_output)
        asked = time.monotonic_ns()
        arrival = None
        if step.tokens and stage.index:
            arrival = self.transport.links[stage.index].take().waited()
        start = time.monotonic_ns()
        began = self.clock.begin() if step.tokens else None
        output = stage.run(scheduler_output, arrival)
        if stage.group.is_last_rank:
            samples, grammar = message.sampling[index]
            if samples:
                output = stage.sample(grammar)
        elif self._outputs is not None and step.tokens:
            output = stage.sample(None)
        if self._outputs is not None:
            self._outputs.setdefault(index, []).append(output)
        times = asked, start, time.monotonic_ns()
        if began is not None:
            self.clock.end(began, stage.index, index)
            self.meter.ran(stage.index, asked, start, arrival)
            self._record(stage, index, times, arrival)
        return output

    def _record(
        self, stage: Stage, index: int, times: tuple[int, int, int], arrival: Arrival | None
    ) -> None:
        """Note an action: when its input was asked for, when it started, when it ended."""
        if not self.recorder.enabled:
            return
        asked, start, end = times
        group = stage.group
        self.recorder.add("c", stage.index, index, start, end)
        if arrival is not None and arrival.posted_ns is not None:
            waited = start - asked
            self.recorder.add("r", stage.index, index, arrival.posted_ns, arrival.done_ns, waited)
        if not group.is_last_rank and not self.layout.enters_by_turn(stage.index + 1):
            self.recorder.add("s", stage.index + 1, index, group.sent_ns, group.sent_bytes)
