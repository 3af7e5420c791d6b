"""Decides the order of actions in virtual time, and knows which decisions can no longer change.

Owns the virtual clock: micro-batches are submitted one by one, the ordering policy is asked whenever
a rank is free, and each decision becomes final ("settled") as soon as no micro-batch yet to come
could alter it. The simulator submits everything it releases and reads off start and end times; the
engine's executor submits what the scheduler produced and sends out the settled actions. Reads no
real clock.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from vllm_vpp.core.batch import MicroBatch
from vllm_vpp.core.cost import CostModel
from vllm_vpp.core.layout import Layout
from vllm_vpp.core.order import Candidate, Order
from vllm_vpp.core.schedule import Action

__all__ = ["Dispatcher", "Placed"]

_NS = 1_000_000_000


class Placed(NamedTuple):
    """A settled action with its virtual start and end, in integer nanoseconds."""

    action: Action
    rank: int
    start_ns: int
    end_ns: int


def _no_transfer(stage: int, micro_batch: MicroBatch) -> float:
    return 0.0


@dataclass(slots=True)
class _Stage:
    """Next micro-batch of a stage, and arrival times of its inputs, in order."""

    next: int = 0
    arrivals: deque[int] = field(default_factory=deque)


@dataclass(slots=True)
class Dispatcher:
    """Mutable state of the virtual clock. `submit`, then `settle`; see the module text.

    `transfer(stage, micro_batch)` gives the seconds from the end of stage-1 to the input of `stage`
    being there, over a channel that never blocks compute; it is not asked at a turn.
    """

    order: Order
    cost: CostModel
    transfer: Callable[[int, MicroBatch], float] = _no_transfer
    layout: Layout = field(init=False)
    now_ns: int = field(init=False, default=0)
    batches: list[MicroBatch] = field(init=False, default_factory=list)
    _first: int = field(init=False, default=0)
    _stages: list[_Stage] = field(init=False)
    _free_ns: list[int] = field(init=False)
    _events: list[tuple[int, int]] = field(init=False, default_factory=list)
    _ends: dict[int, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.layout = self.order.layout
        self._stages = [_Stage() for _ in range(self.layout.stages)]
        self._free_ns = [0] * self.layout.ranks

    @property
    def submitted(self) -> int:
        """Number of micro-batches submitted; also the index of the next one."""
        return self._first + len(self.batches)

    def submit(self, micro_batch: MicroBatch, release_ns: int | None = None) -> None:
        """Add the next micro-batch; it can start at `release_ns`, by default now."""
        assert micro_batch.index == self.submitted, (micro_batch.index, self.submitted)
        release = self.now_ns if release_ns is None else release_ns
        self.batches.append(micro_batch)
        self._stages[0].arrivals.append(release)
        heappush(self._events, (release, self.layout.owner(0)))

    def retire(self, index: int) -> None:
        """Note that the result of micro-batch `index` has been used: virtual now is its end."""
        self.now_ns = max(self.now_ns, self._ends.pop(index))
        done = min(stage.next for stage in self._stages)
        del self.batches[: done - self._first]
        self._first = done

    def end_ns(self, index: int) -> int | None:
        """Virtual end of a micro-batch, or None while its last action is not settled."""
        return self._ends.get(index)

    def settle(self, awaited: int | None = None, *, closed: bool = False) -> list[Placed]:
        """Advance the clock as far as decisions are final; return them in virtual order.

        `awaited`: nothing will be submitted before this micro-batch's virtual end, because the
        caller waits for its result. `closed`: nothing will be submitted any more.
        """
        placed: list[Placed] = []
        stuck_ns: int | None = None
        stuck: list[tuple[int, int]] = []
        while self._events:
            time_ns, rank = self._events[0]
            if stuck_ns is not None and time_ns > stuck_ns:
                break
            heappop(self._events)
            if self._free_ns[rank] > time_ns:
                continue  # busy: its own completion event comes later
            candidates = self._candidates(rank, time_ns)
            if not (closed or self._before_end(awaited, time_ns)) and not self.order.settled(
                rank, candidates, self.submitted
            ):
                stuck_ns = time_ns
                stuck.append((time_ns, rank))
                continue
            chosen = self.order.choose(candidates)
            if chosen is not None:
                placed.append(self._place(rank, chosen, time_ns))
        for event in stuck:  # asked again when the clock next moves
            heappush(self._events, event)
        return placed

    def _before_end(self, awaited: int | None, time_ns: int) -> bool:
        if awaited is None:
            return False
        end_ns = self._ends.get(awaited)
        return end_ns is None or time_ns < end_ns

    def _candidates(self, rank: int, time_ns: int) -> list[Candidate]:
        return [
            Candidate(
                stage,
                state.next,
                bool(state.arrivals) and state.arrivals[0] <= time_ns,
            )
            for stage in self.layout.stages_of(rank)
            if (state := self._stages[stage]).next < self.submitted
        ]

    def _place(self, rank: int, chosen: Candidate, start_ns: int) -> Placed:
        stage, index, _ = chosen
        micro_batch = self.batches[index - self._first]
        end_ns = start_ns + round(self.cost.time(stage, micro_batch) * _NS)
        state = self._stages[stage]
        state.next += 1
        state.arrivals.popleft()
        self._free_ns[rank] = end_ns
        heappush(self._events, (end_ns, rank))
        after = stage + 1
        if after == self.layout.stages:
            self._ends[index] = end_ns
        else:
            arrival_ns = end_ns
            if not self.layout.enters_by_turn(after):
                arrival_ns += round(self.transfer(after, micro_batch) * _NS)
            self._stages[after].arrivals.append(arrival_ns)
            heappush(self._events, (arrival_ns, self.layout.owner(after)))
        return Placed(Action(stage, index), rank, start_ns, end_ns)

    def check(self) -> None:
        """Assert the invariants: stages in order, nothing forgotten, queues as long as they must be."""
        previous = self.submitted
        for stage, state in enumerate(self._stages):
            assert state.next + len(state.arrivals) == previous, f"stage {stage} lost a micro-batch"
            previous = state.next
        assert all(index < previous for index in self._ends), "an end without its last action"
        if previous < self.submitted:
            assert self._events, "work left but nothing to wait for"
