"""How many tokens the scheduler may give to prompts in its next step.

Owns the way from a chunking policy (`core.chunking`), which sees one prompt, to the limits that
vLLM's scheduler knows: tokens of the step, and of one request. Knows nothing of vLLM.
"""

from collections.abc import Iterable
from typing import NamedTuple

from vllm_vpp.core.batch import Chunk
from vllm_vpp.core.chunking import Policy, View, next_chunk
from vllm_vpp.core.chunking.throttle import TokenThrottle

__all__ = ["Limits", "Prompt", "decode_budget", "step_limits"]


class Prompt(NamedTuple):
    """A prompt that is not computed yet, as the scheduler sees it."""

    request: str
    view: View


class Limits(NamedTuple):
    """`step`: tokens of all requests; `request`: of one, where several compete (None: vLLM's own).

    `decodes`: most decode steps, None for any number. `prompts`: the chunks expected of prompts.
    """

    step: int
    request: int | None
    decodes: int | None = None
    prompts: tuple[Chunk, ...] = ()

    @property
    def first(self) -> Chunk | None:
        """The chunk of the first prompt."""
        return self.prompts[0] if self.prompts else None

    @property
    def nothing(self) -> bool:
        """Whether a step within these limits would be empty."""
        return self.step == 0

    def at_most(self, tokens: int, decodes: int) -> "Limits":
        """The same with a shorter first chunk, alone with the decode steps; 0 for none at all."""
        return self._replace(step=tokens + decodes, request=max(tokens, 1))

    def shared(self, maximum: int, threshold: int) -> "Limits":
        """The same chunk at most, and no more than `threshold`, with the step open to others."""
        return self.each(threshold)._replace(step=maximum)

    def each(self, most: int | None) -> "Limits":
        """The same with no more than `most` tokens of one request; None for any number."""
        if most is None:
            return self
        return self._replace(request=most if self.request is None else min(self.request, most))


def decode_budget(policy: Policy | None, ready: int, decoding: int, step: int) -> int:
    """How many of the `ready` decodes go into scheduler step `step`, of all that are `decoding`."""
    if isinstance(policy, TokenThrottle):
        return min(ready, policy.decode_budget(decoding, step))
    return ready


def step_limits(
    policy: Policy | None, prompts: Iterable[Prompt], decodes: int, maximum: int
) -> Limits:
    """Limits for a step whose prompts are, in the scheduler's order, `prompts` (all unfinished).

    The first prompt takes the chunk that the policy says. Where that chunk is its whole prompt,
    further whole prompts join as long as they fit into what the policy would give to a prompt of
    that total length: short prompts are batched, a long prompt's chunk rides alone. Each of the
    `decodes` takes one token. `maximum` is vLLM's max_num_batched_tokens, which always holds.
    Without a policy vLLM decides, and only the first chunk is told.
    """
    room = maximum - decodes
    coming = iter(prompts)
    lead = next(coming, None)
    held = decodes if isinstance(policy, TokenThrottle) else None
    if lead is None or room < 1:
        return Limits(maximum, None, held)
    name, view = lead.request, lead.view._replace(limit=room)
    if policy is None:
        whole = min(view.length - view.prefix, room)
        return Limits(maximum, None, None, (Chunk(name, view.prefix, whole),))
    chunk = next_chunk(policy, view)
    chunks = [Chunk(name, view.prefix, chunk)]
    if chunk < view.length - view.start:
        return Limits(chunk + decodes, chunk, held, tuple(chunks))
    total = chunk
    for request, other in coming:
        whole = other.length - other.prefix
        joined = total + whole
        together = View(0, joined, room, block=other.block, waiting=view.waiting + joined)
        if other.prefix > other.start or joined > room or next_chunk(policy, together) < joined:
            break
        chunks.append(Chunk(request, other.prefix, whole))
        total = joined
    return Limits(total + decodes, total, held, tuple(chunks))
