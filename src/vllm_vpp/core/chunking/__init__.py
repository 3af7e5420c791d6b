"""Chunking policies: how many tokens of a prompt the next micro-batch takes.

Owns nothing but the names that others use. A policy is pure, sees a `View` and names a size; `fit`
makes it a legal chunk. The simulator and the engine's scheduler call `next_chunk`, nothing else.
"""

from vllm_vpp.core.chunking.spec import PLANNED, POLICIES, make_policy, plans_with_law
from vllm_vpp.core.chunking.view import Policy, View, fit, heeds_load

__all__ = [
    "PLANNED",
    "POLICIES",
    "Policy",
    "View",
    "chunk_plan",
    "fit",
    "heeds_load",
    "make_policy",
    "next_chunk",
    "plans_with_law",
]


def next_chunk(policy: Policy, view: View) -> int:
    """Tokens of the next chunk: at least 1, at most the limit and what is left of the prompt."""
    return fit(policy.size(view), view)


def chunk_plan(policy: Policy, length: int, *, limit: int, block: int = 16) -> tuple[int, ...]:
    """Chunks of a whole prompt that has the pipeline to itself."""
    sizes: list[int] = []
    at = 0
    while at < length:
        sizes.append(next_chunk(policy, View(at, length, limit, block=block)))
        at += sizes[-1]
    return tuple(sizes)
