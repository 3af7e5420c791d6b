"""How many tokens the scheduler may give to prompts in its next step.

Owns the way from a chunking policy (`core.chunking`), which sees one prompt, to the two limits
that vLLM's scheduler knows: tokens of the step, and of one request. Knows nothing of vLLM.
"""

from collections.abc import Iterable
from typing import NamedTuple

from vllm_vpp.core.chunking import Policy, View, next_chunk

__all__ = ["Limits", "step_limits"]


class Limits(NamedTuple):
    """`step`: tokens of all requests; `request`: of one, where several compete."""

    step: int
    request: int


def step_limits(policy: Policy, prompts: Iterable[View], decodes: int, maximum: int) -> Limits:
    """Limits for a step whose prompts are, in the scheduler's order, `prompts` (all unfinished).

    The first prompt takes the chunk that the policy says. Where that chunk is its whole prompt,
    further whole prompts join as long as they fit into what the policy would give to a prompt of
    that total length: short prompts are batched, a long prompt's chunk rides alone. Each of the
    `decodes` takes one token. `maximum` is vLLM's max_num_batched_tokens, which always holds.
    """
    room = maximum - decodes
    coming = iter(prompts)
    lead = next(coming, None)
    if lead is None or room < 1:
        return Limits(maximum, maximum)
    first = lead._replace(limit=room)
    chunk = next_chunk(policy, first)
    if chunk < first.length - first.start:
        return Limits(chunk + decodes, chunk)
    total = chunk
    for view in coming:
        joined = total + view.length - view.prefix
        whole = View(0, joined, room, block=view.block)
        if view.prefix > view.start or joined > room or next_chunk(policy, whole) < joined:
            break
        total = joined
    return Limits(total + decodes, total)
