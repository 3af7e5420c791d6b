"""Turns the engine's calls into actions of ranks.

Owns the border between vLLM's engine core and `flow`: it pickles scheduler outputs, builds the
dispatcher with its virtual clock, broadcasts actions over vLLM's own message queue and returns lazy
futures. The engine's batch queue, scheduler and output path stay as they are. Mirrors
vllm/v1/executor/multiproc_executor.py.
"""

import copy
import pickle
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vllm import envs
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.core.dispatch import Dispatcher
from vllm_vpp.core.order import Order
from vllm_vpp.lifetime import end_with_parent
from vllm_vpp.plugin import engine_config
from vllm_vpp.plugin.ahead import Ahead, tokens_of
from vllm_vpp.plugin.board import Board
from vllm_vpp.plugin.flow import Flow, LazyResult
from vllm_vpp.plugin.kv_transfer import StageOutputs
from vllm_vpp.plugin.message import Actions, Reply, Step
from vllm_vpp.plugin.meter import EngineMeter
from vllm_vpp.plugin.pace import Pace
from vllm_vpp.plugin.queues import Inbox, Outbox
from vllm_vpp.plugin.recorder import Recorder, record_machine

__all__ = ["VPPExecutor"]


class VPPExecutor(MultiprocExecutor):
    """vLLM's multiprocess executor with several stages per rank."""

    supports_pp = True
    rpc_broadcast_mq: Any
    response_mqs: list[Any]

    def _init_executor(self) -> None:
        self.settings = engine_config.settings_of(self.vllm_config)
        self.layout = engine_config.layout_of(self.vllm_config)
        end_with_parent()
        self.meter = EngineMeter(Board.create(self.vllm_config) if self.settings.metrics else None)
        self.pace = Pace.start(self.vllm_config)
        super()._init_executor()
        self._look_up_while_waiting()
        dispatcher = Dispatcher(
            order=Order.of(self.settings.order, self.layout),
            cost=engine_config.cost_of(self.vllm_config),
        )
        self.flow = Flow(dispatcher, self._send, lambda reply: tokens_of(reply.output))
        self.ahead = Ahead()
        self.pace.use(dispatcher)
        settings = self.settings
        self.recorder = Recorder(settings.trace_dir, "engine", self._header(), settings.trace_limit)
        record_machine(self.settings.trace_dir, _device(self.parallel_config))
        self._submitted = -1
        self._pools = self.model_config.runner_type == "pooling"

    def _look_up_while_waiting(self) -> None:
        if self.rpc_broadcast_mq is not None:  # this is the first node
            limit = envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS
            self.rpc_broadcast_mq = Outbox(self.rpc_broadcast_mq, lambda: self.is_failed, limit)
            self.response_mqs = [
                Inbox(queue, lambda: self.is_failed) if queue._is_remote_reader else queue
                for queue in self.response_mqs
            ]

    def _header(self) -> dict[str, Any]:
        import vllm

        return {
            "ranks": self.layout.ranks,
            "sweeps": self.layout.sweeps,
            "order": self.settings.order,
            "in_flight": self.settings.depth(self.layout),
            "layers": self.settings.layers,
            "law": asdict(engine_config.law_of(self.vllm_config)),
            "model": Path(self.model_config.model).name,
            "dtype": str(self.model_config.dtype),
            "max_num_batched_tokens": self.scheduler_config.max_num_batched_tokens,
            "block_size": self.cache_config.block_size,
            "vllm": vllm.__version__,
        }

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        """Not in vLLM's own way, inside its pipeline group; for ours see `ahead`."""
        return False

    def _get_output_rank(self) -> int:
        parallel = self.parallel_config
        group = parallel.tensor_parallel_size * parallel.prefill_context_parallel_size
        return int(self.layout.owner(self.layout.stages - 1) * group)

    # vLLM plans KV caches per worker; it sees one per stage
    def get_kv_cache_specs(self) -> list[Any]:
        """KV specs of all stages of all ranks."""
        return [specs for rank in super().get_kv_cache_specs() for specs in rank]

    def determine_available_memory(self) -> list[int]:
        """KV bytes of all stages of all ranks."""
        return [size for rank in super().determine_available_memory() for size in rank]

    def initialize_from_config(self, kv_cache_configs: list[Any]) -> None:
        """Hand each rank the KV configs of its stages."""
        each = self.layout.sweeps
        grouped = [kv_cache_configs[i : i + each] for i in range(0, len(kv_cache_configs), each)]
        super().initialize_from_config(grouped)

    def init_kv_output_aggregator(self, connector: Any) -> None:
        """Merge the reports of the KV connectors of all stages of all ranks."""
        count = self.parallel_config.world_size * self.layout.sweeps
        self.kv_output_aggregator = StageOutputs.from_connector(connector, count)

    def execute_model(self, scheduler_output: SchedulerOutput, non_block: bool = False) -> Any:
        """Submit a micro-batch; `sample_tokens` gives its output.

        This call does when nothing is sampled: the micro-batch is empty, or the model pools.
        """
        began = time.monotonic_ns()
        index = self._submitted = self.flow.next_index
        step = Step(
            index,
            scheduler_output.total_num_scheduled_tokens,
            _chunks(scheduler_output),
            pickle.dumps(scheduler_output, pickle.HIGHEST_PROTOCOL),
            self.ahead.submitted(index, scheduler_output),
        )
        self.flow.submit(step)
        self.pace.submitted(MicroBatch(index, step.chunks))
        self.meter.submitted(step.chunks)
        self._show()
        future: Future[Any] = Future()
        if step.tokens and not self._pools:
            future.set_result(None)
        else:
            self.flow.allow_sampling(index, samples=False)
            future = _Result(self.flow, index, self._received)
        earlier = [] if step.after is None else [step.after]
        self.recorder.add("b", index, step.chunks, began, *earlier)
        self.recorder.add("p", time.monotonic_ns() - began)
        return future if non_block else future.result()

    def sample_tokens(self, grammar_output: GrammarOutput | None, non_block: bool = False) -> Any:
        """Let the last stage of the micro-batch just submitted run and sample.

        The bitmask is a view of a buffer that the scheduler fills anew for every step, and the
        action may be sent after the next one: keep a copy.
        """
        began = time.monotonic_ns()
        index = self._submitted
        self.flow.allow_sampling(index, samples=True, grammar=copy.deepcopy(grammar_output))
        future = _Result(self.flow, index, self._received)
        self.recorder.add("p", time.monotonic_ns() - began)
        return future if non_block else future.result()

    def _received(self, index: int, reply: Reply) -> None:
        self.recorder.add("d", index, time.monotonic_ns())
        self.recorder.flush()
        self.pace.finished(index, reply.took)
        self._show()

    def _show(self) -> None:
        pace = self.pace
        self.meter.update(time.monotonic_ns(), self.flow.in_flight, pace.misfit, pace.version)

    def shutdown(self) -> None:
        """End the ranks, and take away what front ends read."""
        super().shutdown()
        self.meter.close()
        self.pace.close()

    def collective_rpc(
        self,
        method: Any,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Call every rank; what is to be watched, the engine minds as well."""
        if method == "vpp_watch":
            self._watch(*args, **kwargs or {})
        return super().collective_rpc(method, timeout, args, kwargs, **options)

    def _watch(self, *, live: bool, trace: bool) -> None:
        self.meter.on, self.recorder.on = live, trace

    def _send(self, actions: Actions, replies: bool) -> "Future[Any] | None":
        if replies:
            future: Future[Any] = self.collective_rpc(
                "vpp_run",
                timeout=envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS,  # as vLLM does for a step
                args=(actions,),
                non_block=True,
                unique_reply_rank=self.output_rank,
                kv_output_aggregator=self.kv_output_aggregator,  # with one, every rank replies
            )
            return future
        if self.is_failed or self.rpc_broadcast_mq is None:
            raise RuntimeError("Executor failed.")
        self.rpc_broadcast_mq.enqueue(("vpp_run", (actions,), {}, -1))  # -1: no rank replies
        return None


class _Result(LazyResult):
    """vLLM's output of a micro-batch; tells `received` when it is used, once."""

    def __init__(self, flow: Flow, index: int, received: Callable[[int, Reply], None]) -> None:
        super().__init__(flow, index)
        self._received: Callable[[int, Reply], None] | None = received

    def result(self, timeout: float | None = None) -> Any:
        """See `LazyResult.result`."""
        reply: Reply = super().result(timeout)
        if self._received is not None:
            self._received(self._index, reply)
            self._received = None
        return reply.output


def _device(parallel: Any) -> str:
    """What the ranks run on, and how many of it there are."""
    from vllm.platforms import current_platform

    return f"{parallel.world_size} x {current_platform.get_device_name()}"


def _chunks(scheduler_output: SchedulerOutput) -> tuple[Chunk, ...]:
    tokens = scheduler_output.num_scheduled_tokens
    new = [(r.req_id, r.num_computed_tokens) for r in scheduler_output.scheduled_new_reqs]
    cached = scheduler_output.scheduled_cached_reqs
    known = zip(cached.req_ids, cached.num_computed_tokens, strict=True)
    return tuple(
        Chunk(name, prefix, tokens[name]) for name, prefix in [*new, *known] if tokens.get(name)
    )
