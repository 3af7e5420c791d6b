"""What a chunking policy sees, and what it must answer.

Owns the read-only view of one prompt at one scheduler step, the protocol of a policy, and the rule
that turns any answer into a chunk that fits: never empty, never over the limit, ending on a block
boundary, never leaving a tail too short to be worth a step.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple, Protocol

__all__ = ["Policy", "View", "fit", "heeds_load", "next_of_plan"]


class View(NamedTuple):
    """One prompt at one scheduler step, all in tokens.

    prefix: computed so far. length: of the prompt. start: where its computation began (cached
    tokens), or where its chunks were planned anew, and then begun is set: chunks before it are on
    their way. limit: most tokens that this step can still take. block: size of a KV-cache block.
    waiting: prompt tokens yet to be computed, of all requests. free_fraction: share of the KV cache
    that is free.
    """

    prefix: int
    length: int
    limit: int
    start: int = 0
    block: int = 16
    begun: bool = False
    waiting: int = 0
    free_fraction: float = 1.0


class Policy(Protocol):
    """Picks the next chunk. Pure: equal views, equal answers.

    A policy whose `heeds_load` is true looks at `waiting` and `free_fraction` (see `heeds_load`).
    """

    def size(self, view: View) -> int:
        """Tokens wanted for the next chunk, at least 1; `fit` makes it fit."""
        ...


def heeds_load(policy: Policy | None) -> bool:
    """Whether a policy wants `waiting` and `free_fraction`: they cost a walk over all requests."""
    return bool(getattr(policy, "heeds_load", False))


def fit(size: int, view: View) -> int:
    """The chunk nearest to `size` that may be scheduled: 1 <= chunk <= min(limit, what is left).

    A chunk that is not the last ends on a block boundary where the limit allows one. A tail of less
    than a block (kernels waste it, and some crash on it) joins the chunk, or takes a block from it.
    """
    left = view.length - view.prefix
    assert left > 0, view
    assert view.limit > 0, view
    wanted = min(max(size, 1), view.limit, left)
    if wanted < left:
        end = (view.prefix + wanted) // view.block * view.block
        if end <= view.prefix:  # less than a block
            end = (view.prefix // view.block + 1) * view.block
        wanted = min(end - view.prefix, view.limit, left)
    tail = left - wanted
    if 0 < tail < view.block:
        if left <= view.limit:
            return left
        if wanted > view.block:
            return wanted - view.block
    return wanted


def next_of_plan(ends: Sequence[int], view: View) -> int:
    """The chunk that contains the next token; up to its end where a step broke it up.

    `ends`: where each chunk of the plan ends, in tokens from its start on.
    """
    at = view.prefix - view.start
    if at < 0:
        return -at
    number = bisect_right(ends, at)
    return (ends[number] if number < len(ends) else view.length - view.start) - at
