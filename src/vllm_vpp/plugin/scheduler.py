"""vLLM's scheduler, told that it feeds a pipeline.

Owns a few differences from its parent, all by setting what the parent reads or overriding what it
offers; never copies a method body. How large a chunk is comes from `core.chunking`, how much of the
next prompt may follow a long one from `core.packing`, both by way of `pace`.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from vllm_vpp.core.chunking import View, heeds_load
from vllm_vpp.core.chunking.carried import carried
from vllm_vpp.plugin.chunks import Limits, Prompt, decode_budget, step_limits
from vllm_vpp.plugin.pace import Pace

__all__ = ["VPPScheduler", "in_turn"]

_NEVER = 1 << 62  # a step that the scheduler does not come to


class VPPScheduler(Scheduler):
    """The stock scheduler for stages."""

    max_num_scheduled_tokens: int
    adaptive_long_prefill_threshold: bool
    running: list[Request]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # stage 0 learns of sampled tokens from the scheduler, also where P = 1 folds onto one rank
        self.use_pp = True
        self._pace = Pace.of(self.vllm_config)
        self._version = self._pace.version
        self._planned_from: dict[str, tuple[int, bool]] = {}
        self._decoded_at: dict[str, int] = {}
        self._step = 0

    def has_requests(self) -> bool:
        """Whether a step could schedule anything.

        When every running request is in flight with all its tokens and nothing else may start, a
        step would come out empty and take a place in the queue of batches; the engine waits for the
        oldest result instead.
        """
        if not super().has_requests():
            return False
        if self.has_finished_requests() or not self.running:
            return True
        if not self.waiting and not self._open():
            return False
        return not self._limits().nothing

    def _open(self) -> list[Request]:
        """Running requests that a step may take tokens of."""
        return [r for r in self.running if _left(r)]

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """The parent's step, within the limits of chunking policy and packing."""
        limits = self._limits()
        with self._within(limits), self._holding_back(limits.decodes):
            output = super().schedule(*args, **kwargs)
        self._note(output)
        return output

    def _note(self, output: SchedulerOutput) -> None:
        """Remember where prompts began and which end in this step."""
        self._step += 1
        scheduled = output.num_scheduled_tokens
        for new in output.scheduled_new_reqs:
            self._planned_from[new.req_id] = new.num_computed_tokens, False
        cached = output.scheduled_cached_reqs
        for name, prefix in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            if name in cached.resumed_req_ids:
                self._planned_from[name] = prefix, False
        for name in (*output.finished_req_ids, *(output.preempted_req_ids or ())):
            self._planned_from.pop(name, None)
            self._decoded_at.pop(name, None)
            if self._pace.packing is not None:
                self._pace.packing.forget(name)
        self._decoded_at |= {name: self._step for name, n in scheduled.items() if n == 1}
        self._pace.ending = {
            name
            for name, tokens in scheduled.items()
            if tokens > 1
            and (request := self.requests.get(name)) is not None
            and not request.is_prefill_chunk
        }

    def _limits(self) -> Limits:
        if self._pace.version != self._version:
            self._plan_anew()
        policy, packing = self._pace.policy, self._pace.packing
        maximum = self.scheduler_config.max_num_batched_tokens
        threshold = self.scheduler_config.long_prefill_token_threshold
        running = self._open()
        decodes = [r.num_computed_tokens for r in running if _decodes(r)]
        if self._crowded(len(running) > len(decodes)):
            return Limits(0, None)
        most = self._most(running, decodes)
        if most is not None:
            maximum = min(maximum, most + len(decodes))
            most = min(most, threshold or most)
            policy = carried(policy)
        if policy is None and (threshold or not (packing and packing.watches)):
            return Limits(maximum, None).each(most)
        decoding = sum(r.num_output_tokens > 0 for r in self.running)
        budget = decode_budget(policy, len(decodes), decoding, self._step)
        load = self._load() if heeds_load(policy) else {}
        coming = chain((r for r in running if not _decodes(r)), in_turn(self.waiting))
        prompts = (Prompt(r.request_id, self._view(r)._replace(**load)) for r in coming)
        limits = step_limits(policy, prompts, budget, maximum).each(most)
        if threshold:  # the user wants others to share the steps of a long prompt
            return limits.shared(maximum, threshold)
        if packing is None or limits.first is None:
            return limits
        first = limits.first
        if not packing.begun(first.request) and packing.fits(limits.prompts):
            return limits
        return limits.at_most(packing.room(first, self.block_size), budget)

    def _crowded(self, prompts: bool) -> bool:
        """Whether a step has to wait since it would take a prompt and starve those who decode.

        `prompts`: whether running requests have prompt tokens left.
        """
        if not self._pace.crowd.full or not any(r.num_output_tokens for r in self.running):
            return False
        return prompts or (bool(self.waiting) and len(self.running) < self.max_num_running_reqs)

    def _most(self, running: list[Request], decodes: list[int]) -> int | None:
        """Tokens of prompts that a step may take so that requests get their next token in time.

        None for any number: nobody asked, or nobody decodes.
        """
        bound = self._pace.itl_bound
        if bound is None or not any(r.num_output_tokens for r in self.running):
            return None
        prefixes = [r.num_computed_tokens for r in running if not _decodes(r)]
        prefixes += [self._view(r).prefix for r in islice(in_turn(self.waiting), 1)]
        return bound.most(max(prefixes), self.block_size, decodes) if prefixes else None

    def _load(self) -> dict[str, Any]:
        """What some policies look at: prompt tokens yet to be scheduled, free KV cache."""
        everyone = chain(self.running, self.waiting)
        return {
            "waiting": sum(max(r.num_prompt_tokens - r.num_computed_tokens, 0) for r in everyone),
            "free_fraction": 1.0 - self.kv_cache_manager.usage,
        }

    def _plan_anew(self) -> None:
        """Another policy is in force: it plans the chunks still to come of prompts under way."""
        self._version = self._pace.version
        for request in self.running:
            if request.request_id in self._planned_from and not request.num_output_tokens:
                self._planned_from[request.request_id] = request.num_computed_tokens, True

    def _view(self, request: Any) -> View:
        """A prompt that is not computed yet; a waiting one starts after its cached blocks."""
        prefix = request.num_computed_tokens
        if request.request_id not in self._planned_from:
            prefix = prefix or self._cached_tokens(request)
        start, begun = self._planned_from.get(request.request_id, (prefix, False))
        return View(
            prefix,
            request.num_tokens,
            1,
            start=min(start, prefix),
            block=self.block_size,
            begun=begun,
        )

    def _cached_tokens(self, request: Any) -> int:
        manager = self.kv_cache_manager
        if not manager.prefix_cache_lookup_enabled(request):
            return 0
        found = manager.coordinator.find_longest_cache_hit(
            request.block_hashes, request.num_tokens - 1
        )
        return int(found[1])

    @contextmanager
    def _within(self, limits: Limits) -> Iterator[None]:
        config = self.scheduler_config
        tokens, threshold = self.max_num_scheduled_tokens, config.long_prefill_token_threshold
        adaptive = self.adaptive_long_prefill_threshold
        self.max_num_scheduled_tokens = min(limits.step, tokens)
        if limits.request is not None:
            config.long_prefill_token_threshold = limits.request
            self.adaptive_long_prefill_threshold = adaptive and bool(threshold)
        try:
            yield
        finally:
            self.max_num_scheduled_tokens = tokens
            config.long_prefill_token_threshold = threshold
            self.adaptive_long_prefill_threshold = adaptive

    @contextmanager
    def _holding_back(self, decodes: int | None) -> Iterator[None]:
        """Let at most so many ready decodes be seen by the parent; the longest waiting go first."""
        ready = [r for r in self._open() if _decodes(r)]
        if decodes is not None and len(ready) > decodes:
            ready.sort(key=lambda r: self._decoded_at.get(r.request_id, -1))
            del ready[decodes:]
        taken = {r.request_id for r in ready}
        kept_back = [r for r in self.running if _decodes(r) and r.request_id not in taken]
        for request in kept_back:
            request.next_decode_eligible_step = _NEVER
        try:
            yield
        finally:
            for request in kept_back:
                request.next_decode_eligible_step = 0


def in_turn(waiting: Iterable[Any]) -> Iterator[Any]:
    """Waiting requests in the order that vLLM takes them: it skips those that wait for data."""
    blocked = Scheduler._is_blocked_waiting_status
    yield from (r for r in waiting if not blocked(r.status))
    yield from (r for r in waiting if blocked(r.status))


def _left(request: Any) -> int:
    """Tokens of a running request that are not in flight yet."""
    known = request.num_tokens_with_spec + request.num_output_placeholders
    return int(known - request.num_computed_tokens)


def _decodes(request: Any) -> bool:
    """Whether a running request only needs its newest token computed, known yet or not."""
    made = request.num_output_tokens + request.num_output_placeholders
    return made > 0 and _left(request) == 1
