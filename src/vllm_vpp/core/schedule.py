"""A schedule is data: for each rank the order of its actions, with a text form that round-trips.

Owns actions, the text form, the rules a schedule must obey and the grid that shows one. Leaves to
`order` how an order is chosen, and to `timeline` when anything happens.

Text form, one line per rank: `0: s0/C0 s0/C1 s3/C0`, in the paper's notation (stage / chunk).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vllm_vpp.core.layout import Layout
from vllm_vpp.errors import ScheduleError

__all__ = ["Action", "Schedule", "grid", "unit_starts"]

_ACTION = re.compile(r"s(\d+)/C(\d+)")
_LINE = re.compile(r"\s*(\d+):(.*)")


class Action(NamedTuple):
    """One stage run on one micro-batch."""

    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"s{self.stage}/C{self.micro_batch}"

    @classmethod
    def parse(cls, text: str) -> "Action":
        """Inverse of `str`. Raises ScheduleError for anything else."""
        match = _ACTION.fullmatch(text)
        if match is None:
            raise ScheduleError(f"action {text!r}: must look like s3/C0 (stage/micro-batch)")
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True)
class Schedule:
    """`actions[r]` is what rank r runs, in order."""

    layout: Layout
    actions: tuple[tuple[Action, ...], ...]

    @classmethod
    def from_order(cls, layout: Layout, order: Iterable[Action]) -> "Schedule":
        """Split one global order of actions into the orders of the ranks."""
        ranks: list[list[Action]] = [[] for _ in range(layout.ranks)]
        for action in order:
            ranks[layout.owner(action.stage)].append(action)
        return cls(layout, tuple(map(tuple, ranks)))

    @property
    def micro_batches(self) -> int:
        """One more than the largest micro-batch index; 0 for an empty schedule."""
        return 1 + max((a.micro_batch for rank in self.actions for a in rank), default=-1)

    def __str__(self) -> str:
        return "\n".join(
            f"{r}: {' '.join(map(str, acts))}".rstrip() for r, acts in enumerate(self.actions)
        )

    @classmethod
    def parse(cls, layout: Layout, text: str) -> "Schedule":
        """Inverse of `str`. Raises ScheduleError with the offending line."""
        ranks: list[tuple[Action, ...]] = []
        for line in filter(str.strip, text.splitlines()):
            match = _LINE.fullmatch(line)
            if match is None or int(match[1]) != len(ranks):
                raise ScheduleError(
                    f"line {line!r}: must begin with '{len(ranks)}:' (ranks in order)"
                )
            ranks.append(tuple(map(Action.parse, match[2].split())))
        if len(ranks) != layout.ranks:
            raise ScheduleError(
                f"{len(ranks)} lines: layout {layout.name} has {layout.ranks} ranks; one line each"
            )
        return cls(layout, tuple(ranks))

    def check(self) -> None:
        """Raise ScheduleError unless every rule holds.

        Each (stage, micro-batch) runs once, on its owner; each stage sees micro-batches in order;
        the ranks' orders together contain no cycle.
        """
        for rank, actions in enumerate(self.actions):
            for action in actions:
                if (
                    not 0 <= action.stage < self.layout.stages
                    or self.layout.owner(action.stage) != rank
                ):
                    raise ScheduleError(
                        f"{action} on rank {rank}: not its stage\n{grid(self, action)}"
                    )
            for stage in self.layout.stages_of(rank):
                seen = [a.micro_batch for a in actions if a.stage == stage]
                for position, micro_batch in enumerate(seen):
                    if micro_batch != position:
                        wrong = Action(stage, micro_batch)
                        raise ScheduleError(
                            f"{wrong} on rank {rank}: stage {stage} must see micro-batch"
                            f" {position} next (each once, in order)\n{grid(self, wrong)}"
                        )
                if len(seen) != self.micro_batches:
                    missing = Action(stage, len(seen))
                    raise ScheduleError(f"{missing} is missing on rank {rank}\n{grid(self)}")
        starts = unit_starts(self)
        for rank, actions in enumerate(self.actions):
            if len(starts[rank]) < len(actions):
                stuck = actions[len(starts[rank])]
                raise ScheduleError(
                    f"{stuck} on rank {rank} can never start: cycle\n{grid(self, stuck)}"
                )


def unit_starts(schedule: Schedule) -> list[list[int]]:
    """Start slot of each action when every action takes one slot and transfers none.

    Returns one list per rank, cut short at the first action that can never start.
    """
    done: dict[Action, int] = {}
    starts: list[list[int]] = [[] for _ in schedule.actions]
    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(schedule.actions):
            while len(starts[rank]) < len(actions):
                action = actions[len(starts[rank])]
                before = Action(action.stage - 1, action.micro_batch)
                if action.stage and before not in done:
                    break
                slot = max(starts[rank][-1] + 1 if starts[rank] else 0, done.get(before, 0))
                starts[rank].append(slot)
                done[action] = slot + 1
                moved = True
    return starts


def grid(schedule: Schedule, failing: Action | None = None) -> str:
    """Unit-slot picture: a row per rank, a column per slot; `failing` is marked with `>`.

    Actions that can never start are listed after a bar, in the rank's order.
    """
    starts = unit_starts(schedule)
    width = max((len(str(a)) for rank in schedule.actions for a in rank), default=0)
    slots = 1 + max((s for rank in starts for s in rank), default=-1)

    def cell(action: Action) -> str:
        mark = ">" if action == failing else " "
        return mark + str(action).ljust(width)

    def row(rank: int, actions: Sequence[Action]) -> str:
        cells = [" " + ".".ljust(width)] * slots
        for action, slot in zip(actions, starts[rank], strict=False):
            cells[slot] = cell(action)
        stuck = "".join(map(cell, actions[len(starts[rank]) :]))
        return f"{rank}:{''.join(cells)}{' |' + stuck if stuck else ''}".rstrip()

    return "\n".join(row(rank, actions) for rank, actions in enumerate(schedule.actions))
