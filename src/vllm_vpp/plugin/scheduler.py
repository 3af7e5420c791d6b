"""vLLM's scheduler, told that it feeds a pipeline.

Owns two small differences from its parent, both by overriding what it offers; never copies a method
body.
"""

from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

__all__ = ["VPPScheduler"]


class VPPScheduler(Scheduler):
    """The stock scheduler for stages."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # stage 0 learns of sampled tokens from the scheduler, also where P = 1 folds onto one rank
        self.use_pp = True

    def has_requests(self) -> bool:
        """Whether a step could schedule anything.

        When every running request is in flight with all its tokens and nothing waits, a step would
        come out empty and take a place in the queue of batches; the engine waits for the oldest
        result instead.
        """
        if self.waiting or self.has_finished_requests() or not self.running:
            return bool(super().has_requests())
        return any(
            request.num_tokens_with_spec + request.num_output_placeholders
            > request.num_computed_tokens
            for request in self.running
        )
