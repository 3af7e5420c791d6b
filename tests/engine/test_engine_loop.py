"""vLLM's own engine loop and scheduler over our executor, with ranks that compute nothing.

A state machine submits, aborts, pauses and steps in any order. The ranks check what a stage is
given; the machine checks what comes out: every token once and in order, and no limit exceeded.
"""

import os
import pickle
import queue
import zlib
from collections import deque
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from engine_runs import Engine
from fake_ranks import Pick, Ranks
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from vllm_vpp.core.batch import MicroBatch
from vllm_vpp.core.cost import QuadraticCost
from vllm_vpp.core.itl import ItlBound
from vllm_vpp.plugin import hooks, register
from vllm_vpp.plugin.message import Actions, Reply, Step

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

BLOCK, BLOCKS = 16, 24  # tokens of a KV block, and blocks
BATCH_TOKENS, RUNNING = 64, 4  # most tokens of a step, most requests under way
STOP = 7
COST = {"c0": 0.005, "b": 0.001, "a": 1e-7}
LAYOUTS: tuple[tuple[int, dict[str, Any]], ...] = (
    (1, {"layout": "v"}),
    (2, {"layout": "v"}),
    (3, {"layout": "v", "order": "async"}),
    (2, {"layout": "v", "in_flight": 2}),
    (2, {"layout": "v", "in_flight": 30}),
    (2, {"layout": "linear"}),
    (2, {"layout": "wave", "sweeps": 3}),
    (2, {"layout": "v", "chunking": {"policy": "fixed", "chunk": 32}}),
    (2, {"layout": "v", "in_flight": 2, "cost": COST, "itl_target_ms": 48}),
)


def token(name: str, position: int) -> int:
    """What the last stage samples after `position` tokens; now and then the stop token."""
    drawn = zlib.crc32(f"{name} {position}".encode())
    return STOP if drawn % 23 == 0 else 8 + drawn % 900


@cache
def config(which: int, ahead: bool) -> Any:
    """`ahead`: asynchronous scheduling."""
    from vllm.engine.arg_utils import EngineArgs

    options = {
        "max_num_batched_tokens": BATCH_TOKENS,
        "max_num_seqs": RUNNING,
        "max_model_len": 2 * BLOCK * BLOCKS,
        "async_scheduling": ahead or None,
        "block_size": BLOCK,
    }
    ranks, vpp = LAYOUTS[which]
    engine = Engine("llama", ranks, vpp, caching=False, options=options)
    with patch.dict(os.environ, engine.variables()):
        register()
        try:
            built = EngineArgs(**engine.arguments()).create_engine_config()
        finally:
            hooks.uninstall()
    built.cache_config.num_gpu_blocks = BLOCKS
    return built


class Workers(Ranks):
    """Ranks that read scheduler outputs as a model runner does, and check them."""

    def __init__(self, layout: Any, pick: Pick) -> None:
        super().__init__(layout, pick)
        self.filled: list[dict[str, int]] = [{} for _ in range(layout.stages)]
        self.states: list[dict[str, Any]] = [{} for _ in range(layout.stages)]
        self.prompts: dict[str, int] = {}
        self.blocks: dict[str, list[int]] = {}

    def compute(self, stage: int, step: Step) -> Any:
        output = pickle.loads(step.scheduler_output)
        filled = self.filled[stage]
        for name in output.finished_req_ids:
            filled.pop(name, None)
        starts = {r.req_id: r.num_computed_tokens for r in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        for name, prefix in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            starts[name] = prefix
            if name not in cached.resumed_req_ids:
                assert filled[name] == prefix, "a stage skips tokens or sees them twice"
        if stage < self.layout.stages - 1:
            self.look_up(stage, step)
        assert starts.keys() == output.num_scheduled_tokens.keys()
        for name, tokens in output.num_scheduled_tokens.items():
            filled[name] = starts[name] + tokens
        if stage == 0:
            self.own_blocks(output)
        return super().compute(stage, step)

    def look_up(self, stage: int, step: Step) -> None:
        """What a model runner before the last stage computes is what was sampled."""
        from vllm_vpp.plugin.ahead import cut_dropped, fill

        output, states = pickle.loads(step.scheduler_output), self.states[stage]
        fill(output, step.sampled)
        cut_dropped(states, output)
        cached = output.scheduled_cached_reqs
        for name, given, prefix in zip(
            cached.req_ids, cached.new_token_ids, cached.num_computed_tokens, strict=True
        ):
            start = self.prompts[name]
            made = states.setdefault(name, SimpleNamespace(output_token_ids=[])).output_token_ids
            new = prefix + len(given) - start - len(made)
            made += given[len(given) - new :] if new > 0 else []
            end = prefix + output.num_scheduled_tokens[name]
            for position in range(max(prefix, start), end):
                assert made[position - start] == token(name, position), "not what was sampled"

    def own_blocks(self, output: Any) -> None:
        """No two requests of a step share a block, and there are no more than there are."""
        for new in output.scheduled_new_reqs:
            self.prompts[new.req_id] = len(new.prompt_token_ids)
            self.blocks[new.req_id] = list(new.block_ids[0])
        cached = output.scheduled_cached_reqs
        for name, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if name in cached.resumed_req_ids:
                self.blocks[name] = []
            self.blocks[name] += blocks[0] if blocks is not None else []
        held = [block for name in output.num_scheduled_tokens for block in self.blocks[name]]
        assert len(held) == len(set(held)), "a block of two requests"
        assert all(0 < block < BLOCKS for block in held)
        for name, tokens in output.num_scheduled_tokens.items():
            assert self.filled[0][name] <= BLOCK * len(self.blocks[name]), "tokens without a block"
            assert tokens > 0

    def answer(self, step: Step) -> Any:
        from vllm.v1.outputs import ModelRunnerOutput

        output = pickle.loads(step.scheduler_output)
        cached = output.scheduled_cached_reqs
        made = dict(zip(cached.req_ids, cached.num_output_tokens, strict=True))
        names = list(output.num_scheduled_tokens)
        assert self.sampling[step.index] == (bool(names), None)
        sampled = []
        for name in names:
            end = self.filled[-1][name]
            known = self.prompts[name] + made.get(name, 0)
            assert end <= known, "a token is computed before it is known"
            sampled.append([token(name, end)] if end == known else [])
        made_here = ModelRunnerOutput(names, {n: i for i, n in enumerate(names)}, sampled)
        return Reply(made_here, ())


class Broadcast:
    """Stands for vLLM's message queue to all ranks."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def enqueue(
        self, message: tuple[str, tuple[Actions], dict[str, Any], int], timeout: float
    ) -> None:
        assert timeout > 0
        method, (actions,), named, replying = message
        assert (method, named, replying) == ("vpp_run", {}, -1)
        self.ranks.send(actions, False)


def start_executor(vllm_config: Any, pick: Pick) -> Any:
    """Our executor as it is, but for the processes that vLLM's would start."""
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    from vllm_vpp.plugin.executor import VPPExecutor

    class WithoutProcesses(VPPExecutor):
        def collective_rpc(
            self,
            method: str,
            timeout: float | None = None,
            args: tuple[Any, ...] = (),
            kwargs: dict[str, Any] | None = None,
            **options: Any,
        ) -> Any:
            assert (method, options["non_block"]) == ("vpp_run", True)
            assert options["unique_reply_rank"] == self.output_rank
            assert options["kv_output_aggregator"] is None
            return self.ranks.send(*args, True)

    def without_processes(self: Any) -> None:
        self.is_failed = False
        self.ranks = Workers(self.layout, pick)
        self.rpc_broadcast_mq, self.response_mqs = Broadcast(self.ranks), []
        self.output_rank = self._get_output_rank()

    with patch.object(MultiprocExecutor, "_init_executor", without_processes):
        return WithoutProcesses(vllm_config)


def start_scheduler(vllm_config: Any) -> Any:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    scheduler = vllm_config.scheduler_config.get_scheduler_cls()

    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    caches = KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(["layer"], spec)])
    return scheduler(
        vllm_config=vllm_config,
        kv_cache_config=caches,
        structured_output_manager=StructuredOutputManager(vllm_config),
        block_size=BLOCK,
        hash_block_size=BLOCK,
    )


def start_core(vllm_config: Any, pick: Pick) -> Any:
    """vLLM's engine core with what its step needs, without its processes and sockets."""
    from vllm.v1.engine.core import EngineCore

    from vllm_vpp.plugin import engine_config

    core = object.__new__(EngineCore)
    core.vllm_config = vllm_config
    core.log_stats = core.is_mm_encoder_only = core.is_pooling_model = False
    core.check_for_draft_tokens = False
    core._weight_version = "default"
    core.model_executor = start_executor(vllm_config, pick)
    core.scheduler = start_scheduler(vllm_config)
    core.batch_queue_size = engine_config.in_flight(vllm_config)
    core.batch_queue = deque(maxlen=core.batch_queue_size)
    core.aborts_queue = queue.Queue()
    return core


class EngineLoop(RuleBasedStateMachine):
    """What clients and operators may do to an engine, interleaved with its steps."""

    @initialize(
        which=st.sampled_from(range(len(LAYOUTS))),
        ahead=st.booleans(),
        rng=st.randoms(use_true_random=False),
    )
    def start(self, which: int, ahead: bool, rng: Any) -> None:
        self.core = start_core(config(which, ahead), rng.randrange)
        self.ranks: Workers = self.core.model_executor.ranks
        self.requests: dict[str, Any] = {}
        self.received: dict[str, list[int]] = {}
        self.ended: dict[str, str] = {}
        self.aborted: set[str] = set()

    def live(self) -> list[str]:
        return sorted(self.requests.keys() - self.ended.keys() - self.aborted)

    @rule(prompt=st.integers(1, 200), made=st.integers(1, 30))
    def submit(self, prompt: int, made: int) -> None:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        name = f"r{len(self.requests)}"
        params = SamplingParams(max_tokens=made, ignore_eos=True, stop_token_ids=[STOP])
        request = Request(name, [1] * prompt, params, None)
        self.requests[name], self.received[name] = request, []
        self.core.scheduler.add_request(request)

    @precondition(lambda self: self.live())
    @rule(data=st.data(), late=st.booleans())
    def abort(self, data: st.DataObject, late: bool) -> None:
        """`late`: noticed by the engine while it waits for a result."""
        name = data.draw(st.sampled_from(self.live()))
        self.aborted.add(name)
        if late:
            self.core.aborts_queue.put([name])
        else:
            self.core.abort_requests([name])

    @rule(state=st.sampled_from(["PAUSED_NEW", "PAUSED_ALL", "UNPAUSED", "UNPAUSED"]))
    def pause(self, state: str) -> None:
        from vllm.v1.core.sched.interface import PauseState

        self.core.scheduler.set_pause_state(PauseState[state])

    @rule()
    def start_over(self) -> None:
        """All that run are preempted, and what is in flight is dropped."""
        self.core.scheduler.reset_prefix_cache(reset_running_requests=True)

    @rule(times=st.integers(1, 12))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.step_once()

    @rule(times=st.integers(1, 30))
    def let_ranks_run(self, times: int) -> None:
        for _ in range(times):
            self.ranks.move()

    def step_once(self) -> bool:
        """As the engine's busy loop does; whether there was anything to do."""
        core = self.core
        if not (core.scheduler.has_requests() or core.batch_queue):
            core._process_aborts_queue()
            return False
        outputs, _ = core.step_with_batch_queue()
        for batch in (outputs or {}).values():
            for output in batch.outputs:
                self.receive(output)
        return True

    def receive(self, output: Any) -> None:
        name = output.request_id
        assert name not in self.ended, "an output after the end"
        tokens = self.received[name]
        tokens += output.new_token_ids
        start = self.requests[name].num_prompt_tokens
        assert tokens == [token(name, start + i) for i in range(len(tokens))]
        if output.finish_reason is not None:
            self.ended[name] = str(output.finish_reason)

    @invariant()
    def limits_hold(self) -> None:
        if not hasattr(self, "core"):
            return
        flow = self.core.model_executor.flow
        flow.check()
        assert flow.in_flight == len(self.core.batch_queue) <= self.core.batch_queue_size
        assert len(self.core.scheduler.running) <= RUNNING
        assert len(self.ranks.unread) <= flow.MAX_UNREAD

    def teardown(self) -> None:
        """Everything comes to an end, and nothing is left behind."""
        if not hasattr(self, "core"):
            return
        self.pause("UNPAUSED")
        for _ in range(20_000):
            if not self.step_once():
                break
        else:
            raise AssertionError("the engine never comes to rest")
        self.limits_hold()
        for name in self.live():
            raise AssertionError(f"{name} was forgotten: {self.requests[name]}")
        for name in self.ended.keys() - self.aborted:
            made = self.received[name]
            assert len(made) == self.requests[name].max_tokens or made[-1] == STOP
        assert not self.core.scheduler.requests
        pool = self.core.scheduler.kv_cache_manager.block_pool
        assert pool.get_num_free_blocks() == BLOCKS - 1, "blocks are not given back"
        while self.ranks.move():
            pass
        assert not any(self.ranks.inbox)
        done = self.core.model_executor.flow.next_index
        assert [len(ran) for ran in self.ranks.ran] == [
            done * self.ranks.layout.sweeps for _ in self.ranks.ran
        ]


EngineLoop.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestEngineLoop = EngineLoop.TestCase


def steps_of(ahead: bool, *prompts: int, which: int = 1) -> list[tuple[Step, int]]:
    """Micro-batches of a V on two ranks, and how many were in flight; each prompt decodes eight."""
    from vllm import SamplingParams
    from vllm.v1.request import Request

    core = start_core(config(which, ahead), lambda n: 0)
    flow = core.model_executor.flow
    steps: list[tuple[Step, int]] = []
    submit = flow.submit

    def noted(step: Step) -> Any:
        steps.append((step, flow.in_flight))
        return submit(step)

    flow.submit = noted
    for number, length in enumerate(prompts):
        params = SamplingParams(max_tokens=8, ignore_eos=True)
        core.scheduler.add_request(Request(f"r{number}", [1] * length, params, None))
    while core.scheduler.has_requests() or core.batch_queue:
        core.step_with_batch_queue()
    empty = [step for step, _ in steps if not step.tokens]
    assert len(empty) <= len(prompts), "more than those that say that a request has ended"
    return [(step, behind) for step, behind in steps if step.tokens]


def test_one_request_decodes_a_step_ahead_of_its_tokens() -> None:
    waiting, ahead = (steps_of(which, BATCH_TOKENS) for which in (False, True))
    assert len(waiting) == len(ahead) == 8, "no step too many"
    assert not any(step.awaits for step, _ in waiting)
    assert [step.awaits for step, _ in ahead[1:]] == [{"r0": s.index} for s, _ in ahead[:-1]]
    assert {behind for _, behind in waiting} == {0}
    assert [behind for _, behind in ahead] == [0] + [1] * 7


def test_groups_that_take_turns_do_not_merge() -> None:
    steps = steps_of(True, BATCH_TOKENS, BATCH_TOKENS)
    assert [len(step.chunks) for step, _ in steps] == [1] * 16
    assert [step.chunks[0].request for step, _ in steps] == ["r0", "r1"] * 8


def test_no_decode_goes_ahead_while_there_is_a_prompt_to_compute() -> None:
    steps = steps_of(True, BATCH_TOKENS // 2, 4 * BATCH_TOKENS)
    prompt = [n for n, (step, _) in enumerate(steps) if any(c.tokens > 1 for c in step.chunks)]
    assert not any(step.awaits for step, _ in steps[: prompt[-1] + 1])
    assert any(step.awaits for step, _ in steps[prompt[-1] + 1 :])


def test_chunks_are_as_large_as_decoding_requests_allow() -> None:
    which = next(n for n, (_, vpp) in enumerate(LAYOUTS) if "itl_target_ms" in vpp)
    bound = ItlBound(target=0.048, law=QuadraticCost(**COST), ranks=2, in_flight=2)
    steps = [step for step, _ in steps_of(False, BLOCK, 4 * BATCH_TOKENS, which=which)]
    decodes = [n for n, step in enumerate(steps) if step.chunks[0] == ("r0", BLOCK, 1)]
    before, beside = steps[: decodes[0]], steps[decodes[0] :]
    assert max(step.tokens for step in before) == BATCH_TOKENS
    assert max(bound.seconds(MicroBatch(0, step.chunks)) for step in beside) <= bound.target
    largest = max(c.tokens for step in beside for c in step.chunks)
    assert largest == 2 * BLOCK, "the bound leaves room for two blocks, not for three"
    free = steps_of(False, 4 * BATCH_TOKENS, which=which)
    assert [step.tokens for step, _ in free[:4]] == [BATCH_TOKENS] * 4
