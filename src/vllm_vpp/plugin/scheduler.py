"""vLLM's scheduler, told that it feeds a pipeline.

Owns a few differences from its parent, all by setting what the parent reads or overriding what it
offers; never copies a method body. How large a chunk is comes from `core.chunking`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from vllm_vpp.core.chunking import View
from vllm_vpp.plugin import engine_config
from vllm_vpp.plugin.chunks import Limits, step_limits

__all__ = ["VPPScheduler"]


class VPPScheduler(Scheduler):
    """The stock scheduler for stages."""

    max_num_scheduled_tokens: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # stage 0 learns of sampled tokens from the scheduler, also where P = 1 folds onto one rank
        self.use_pp = True
        self._policy = engine_config.chunking_policy(self.vllm_config)
        self._started_at: dict[str, int] = {}

    def has_requests(self) -> bool:
        """Whether a step could schedule anything.

        When every running request is in flight with all its tokens and nothing waits, a step would
        come out empty and take a place in the queue of batches; the engine waits for the oldest
        result instead.
        """
        if not super().has_requests():
            return False
        if self.waiting or self.has_finished_requests() or not self.running:
            return True
        return any(map(_left, self.running))

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """The parent's step, within the limits of the chunking policy if there is one."""
        if self._policy is None:
            return super().schedule(*args, **kwargs)
        with self._within(self._limits()):
            output = super().schedule(*args, **kwargs)
        for request in output.scheduled_new_reqs:
            self._started_at[request.req_id] = request.num_computed_tokens
        for name in output.finished_req_ids:
            self._started_at.pop(name, None)
        return output

    def _limits(self) -> Limits:
        assert self._policy is not None
        running = [r for r in self.running if _left(r)]
        decodes = sum(_decodes(r) for r in running)
        views = (
            self._view(r) for r in chain((r for r in running if not _decodes(r)), self.waiting)
        )
        return step_limits(
            self._policy, views, decodes, self.scheduler_config.max_num_batched_tokens
        )

    def _view(self, request: Any) -> View:
        """A prompt that is not computed yet; a waiting one starts after its cached blocks."""
        start = self._started_at.get(request.request_id)
        prefix = request.num_computed_tokens
        if start is None:
            start = prefix = prefix or self._cached_tokens(request)
        return View(prefix, request.num_tokens, 1, min(start, prefix), self.block_size, decodes=0)

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
        saved = self.max_num_scheduled_tokens, config.long_prefill_token_threshold
        self.max_num_scheduled_tokens = min(limits.step, saved[0])
        config.long_prefill_token_threshold = limits.request
        try:
            yield
        finally:
            self.max_num_scheduled_tokens, config.long_prefill_token_threshold = saved


def _left(request: Any) -> int:
    """Tokens of a running request that are not in flight yet."""
    known = request.num_tokens_with_spec + request.num_output_placeholders
    return int(known - request.num_computed_tokens)


def _decodes(request: Any) -> bool:
    """Whether a running request only needs its newest token computed."""
    return request.num_output_tokens > 0 and _left(request) == 1
