"""Whether a schedule can hang when transfers are rendezvous on ordered channels.

Owns the model of a channel: the operations of a rank on one (pair of ranks, group) complete in the
order they were posted, and a send completes only together with the matching receive at the head of
the peer's list. Compute waits for its input, never for a send. Mirrors how collective libraries
order point-to-point operations of one communicator.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from vllm_vpp.core.layout import Layout
from vllm_vpp.core.schedule import Action, Schedule

__all__ = ["one_group", "one_group_per_sweep", "stuck_actions"]

GroupOf = Callable[[Layout, int], int]


def one_group(layout: Layout, stage: int) -> int:
    """All transfers on one communicator."""
    return 0


def one_group_per_sweep(layout: Layout, stage: int) -> int:
    """The transfers into the stages of one sweep share a communicator (what the engine does)."""
    return layout.sweep(stage)


class _Operation(NamedTuple):
    """Input of `stage` for `micro_batch`, sent or received."""

    sends: bool
    stage: int
    micro_batch: int


def stuck_actions(  # noqa: C901  # four steps of one small machine, each named below
    schedule: Schedule, group_of: GroupOf, *, post_ahead: int = 0
) -> list[Action]:
    """The first action of each rank that can never start; empty when the schedule runs to its end.

    `post_ahead`: receives posted this many actions before the one that needs them.
    """
    layout = schedule.layout
    pending: dict[tuple[int, int, int], list[_Operation]] = defaultdict(list)
    received: set[tuple[int, int]] = set()
    at = [0] * layout.ranks
    posted = [0] * layout.ranks

    def transfers(stage: int) -> bool:
        return 0 < stage < layout.stages and not layout.enters_by_turn(stage)

    def channel(rank: int, stage: int) -> tuple[int, int, int]:
        peers = {layout.owner(stage - 1), layout.owner(stage)} - {rank}
        return rank, peers.pop(), group_of(layout, stage)

    def post_receives(rank: int) -> bool:
        moved = False
        while posted[rank] < min(at[rank] + 1 + post_ahead, len(schedule.actions[rank])):
            action = schedule.actions[rank][posted[rank]]
            if transfers(action.stage):
                pending[channel(rank, action.stage)].append(_Operation(False, *action))
            posted[rank] += 1
            moved = True
        return moved

    def run(rank: int) -> bool:
        moved = False
        while at[rank] < len(schedule.actions[rank]):
            moved |= post_receives(rank)
            action = schedule.actions[rank][at[rank]]
            if action.stage and (action.stage, action.micro_batch) not in received:
                break
            at[rank] += 1
            after = action.stage + 1
            if transfers(after):
                pending[channel(rank, after)].append(_Operation(True, after, action.micro_batch))
            elif after < layout.stages:
                received.add((after, action.micro_batch))
            moved = True
        return moved

    def match() -> bool:
        moved = False
        for (rank, peer, group), mine in list(pending.items()):
            theirs = pending[peer, rank, group]
            while (
                mine
                and theirs
                and mine[0][1:] == theirs[0][1:]
                and mine[0].sends != theirs[0].sends
            ):
                received.add((mine.pop(0).stage, theirs.pop(0).micro_batch))
                moved = True
        return moved

    while any([*(run(rank) for rank in range(layout.ranks)), match()]):
        pass
    return [
        actions[at[rank]]
        for rank, actions in enumerate(schedule.actions)
        if at[rank] < len(actions)
    ]
