"""Tokens that the scheduler did not wait for.

vLLM's asynchronous scheduler plans a decode step before the token that it computes is sampled. Owns
which micro-batch samples it, and its way from that micro-batch's result to the model runners of the
stages, which get what a scheduler that waits would have told them: they run as always, and know
nothing of it. vLLM's own way, refused with its V1 model runner, is to broadcast them inside its
pipeline group.
"""

from collections.abc import Mapping
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput

__all__ = ["Ahead", "cut_dropped", "fill", "tokens_of"]


class Ahead:
    """The engine's side: the micro-batch that each request was last part of."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}

    def submitted(self, index: int, output: SchedulerOutput) -> dict[str, int]:
        """Requests of a micro-batch whose token is not known yet, and which one samples it."""
        cached, scheduled = output.scheduled_cached_reqs, output.num_scheduled_tokens
        known = zip(cached.req_ids, cached.new_token_ids, strict=True)
        awaits = {
            name: self._newest[name] for name, tokens in known if len(tokens) < scheduled[name]
        }
        for name in output.finished_req_ids:
            self._newest.pop(name, None)
        self._newest |= dict.fromkeys(scheduled, index)
        return awaits


def tokens_of(output: Any) -> dict[str, int]:
    """Token that a micro-batch sampled for each request, from vLLM's output of it."""
    sampled = output.sampled_token_ids
    return {name: sampled[row][0] for name, row in output.req_id_to_index.items() if sampled[row]}


def fill(output: SchedulerOutput, sampled: Mapping[str, int]) -> None:
    """Put tokens where a scheduler that waits for them would have."""
    if not sampled:
        return
    cached = output.scheduled_cached_reqs
    for name, tokens in zip(cached.req_ids, cached.new_token_ids, strict=True):
        if name in sampled:
            tokens.append(sampled[name])
            assert len(tokens) == output.num_scheduled_tokens[name]


def cut_dropped(requests: Mapping[str, Any], output: SchedulerOutput) -> None:
    """Take from a runner's `requests` the tokens of results that the scheduler has dropped.

    It drops what is in flight when it is told to preempt everything; a stage that was given such a
    token would take it for the one sampled anew.
    """
    cached = output.scheduled_cached_reqs
    for name, count in zip(cached.req_ids, cached.num_output_tokens, strict=True):
        if name in cached.resumed_req_ids and name in requests:
            del requests[name].output_token_ids[count:]
