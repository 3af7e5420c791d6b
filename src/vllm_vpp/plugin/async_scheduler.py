"""vLLM's asynchronous scheduler, told that it feeds a pipeline.

Owns which decode steps may be scheduled before the token that they compute is sampled. They are of
use where a pipeline would run dry while the engine looks at results, and in the way elsewhere: a
step behind one that waits for its token waits as well. So a request goes ahead by one step, only
while there is no prompt to compute and no other decode whose token is known, and together with
those it was last in a step with: groups that take turns in the pipeline do not merge into one.
"""

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from vllm_vpp.plugin.scheduler import VPPScheduler

__all__ = ["VPPAsyncScheduler"]


class VPPAsyncScheduler(VPPScheduler, AsyncScheduler):
    """The stock asynchronous scheduler for stages."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sampled_in: dict[str, int] = {}  # step that samples a request's newest token

    def _open(self) -> list[Request]:
        found = super()._open()
        settled = [r for r in found if not r.num_output_placeholders]
        admits = bool(self.waiting) and len(self.running) < self.max_num_running_reqs
        if settled or admits:
            return settled
        ahead = [r for r in found if self._may_go_ahead(r)]
        oldest = min((self._sampled_in.get(r.request_id, 0) for r in ahead), default=0)
        return [r for r in ahead if self._sampled_in.get(r.request_id, 0) == oldest]

    def _may_go_ahead(self, request: Any) -> bool:
        """Whether the token in flight may be followed by another step of its request.

        Not where that token is the last, nor where a grammar must see it before the next is drawn.
        """
        computed, unknown = request.num_computed_tokens, request.num_output_placeholders
        end = min(request.num_prompt_tokens + request.max_tokens, self.max_model_len)
        return bool(unknown == 1 and computed + 1 < end and not request.use_structured_output)

    def _note(self, output: SchedulerOutput) -> None:
        super()._note(output)
        for name in (*output.finished_req_ids, *(output.preempted_req_ids or ())):
            self._sampled_in.pop(name, None)
        self._sampled_in |= {
            name: self._step
            for name in output.num_scheduled_tokens
            if not self.requests[name].is_prefill_chunk
        }
