"""Decides the order of actions in virtual time, and knows which decisions can no longer change.

Owns the virtual clock: micro-batches are submitted one by one, the ordering policy is asked
whenever a rank is free, and each decision becomes final ("settled") as soon as no micro-batch yet
to come could alter it. The simulator submits everything it releases and reads off start and end
times; the engine's executor submits what the scheduler produced and sends out the settled actions.
Reads no real clock.

Why a decision is final: a micro-batch yet to come is released at the virtual now at the earliest,
or at the end of the micro-batch that the caller waits for. It starts at stage 0, and every action
lasts at least a nanosecond. So everything before that moment is final; after it the clock goes on
only while the policy says that the rank of stage 0 would do the same with the newcomer there.

A micro-batch may be held: it starts after the end of an earlier one, whose outcome it needs. Before
that no rank waits for it, and newcomers queue up behind it, so that they alter nothing either.
"""

import copy
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from vllm_vpp.core.batch import MicroBatch
from vllm_vpp.core.cost import CostModel, stage_seconds
from vllm_vpp.core.layout import Layout
from vllm_vpp.core.order import Key, Order
from vllm_vpp.core.schedule import Action

__all__ = ["Dispatcher", "Placed"]

_NS = 1_000_000_000
_FOREVER = 1 << 62
_new = tuple.__new__  # what a named tuple's constructor calls, in a third of its time


class Placed(NamedTuple):
    """A settled action with its virtual start and end, in integer nanoseconds.

    `sent_ns`: start and end of the transfer of its output; None at a turn and after the last stage.
    """

    action: Action
    rank: int
    start_ns: int
    end_ns: int
    sent_ns: tuple[int, int] | None = None


def _no_transfer(stage: int, micro_batch: MicroBatch) -> float:
    return 0.0


class _Held(NamedTuple):
    """A micro-batch that enters after the end of `after`, and at `release_ns` at the earliest.

    `enters_ns`: when it does, known once the last action of `after` is placed.
    """

    index: int  # type: ignore[assignment]  # nobody searches it as a tuple
    after: int
    release_ns: int
    enters_ns: int = _FOREVER


class _Row(NamedTuple):
    """A micro-batch in flight: nanoseconds of each stage, and of the transfer into each stage."""

    compute: tuple[int, ...]
    transfer: tuple[int, ...]


@dataclass(slots=True)
class Dispatcher:
    """Mutable state of the virtual clock. `submit`, then `settle`; see the module text.

    `transfer(stage, micro_batch)` gives the seconds from the start of a transfer to the input of
    `stage` being there; it is not asked at a turn. `channels`: for each stage the channel that
    carries its input, one transfer after the other; without it transfers never wait. `blocking`: a
    rank computes nothing while it sends. `gap`: seconds that a rank needs before each action.
    `uniform`: `transfer` says the same for every stage, so that asking once is enough.
    """

    order: Order
    cost: CostModel
    transfer: Callable[[int, MicroBatch], float] = _no_transfer
    channels: Sequence[int] | None = None
    blocking: bool = False
    gap: float = 0.0
    uniform: bool = False
    layout: Layout = field(init=False)
    now_ns: int = field(init=False, default=0)
    batches: list[MicroBatch] = field(init=False, default_factory=list)
    _ranks: int = field(init=False)
    _last: int = field(init=False)
    _gap_ns: int = field(init=False)
    _first: int = field(init=False, default=0)
    _rows: list[_Row] = field(init=False, default_factory=list)
    _next: list[int] = field(init=False)
    _arrivals: list[deque[int]] = field(init=False)
    _held: list[_Held] = field(init=False, default_factory=list)
    _free_ns: list[int] = field(init=False)
    _channel_ns: list[int] = field(init=False)
    _events: list[int] = field(init=False, default_factory=list)
    _ends: dict[int, int] = field(init=False, default_factory=dict)
    _owners: tuple[int, ...] = field(init=False)
    _stages_of: tuple[tuple[int, ...], ...] = field(init=False)
    _turns: tuple[bool, ...] = field(init=False)
    _preferred: bool = field(init=False)
    _key: Callable[[int, int], Key] = field(init=False)
    _keys: list[Key] = field(init=False)
    _choose: Callable[[int, int], int | None] = field(init=False)

    def __post_init__(self) -> None:
        self.layout = layout = self.order.layout
        self._ranks, self._last = layout.ranks, layout.stages
        self._gap_ns = round(self.gap * _NS)
        self._next = [0] * layout.stages
        self._arrivals = [deque() for _ in range(layout.stages)]
        self._free_ns = [0] * layout.ranks
        self._channel_ns = [0] * (1 + max(self.channels or (0,)))
        self._owners = layout.owners
        self._turns = tuple(layout.enters_by_turn(stage) for stage in range(layout.stages))
        self._stages_of = tuple(
            self.order.preference(rank) or layout.stages_of(rank) for rank in range(layout.ranks)
        )
        self._preferred = self.order.preference(0) is not None
        self._key = self.order.keys()
        self._keys = [self._key(stage, 0) for stage in range(layout.stages)]
        self._choose = self._first_ready if self._preferred else self._best

    @property
    def submitted(self) -> int:
        """Number of micro-batches submitted; also the index of the next one."""
        return self._first + len(self.batches)

    def submit(
        self, micro_batch: MicroBatch, release_ns: int | None = None, *, after: int | None = None
    ) -> None:
        """Add the next micro-batch; it can start at `release_ns`, by default (and at least) now.

        `after`: nor before the end of this earlier micro-batch.
        """
        index = micro_batch.index
        assert index == self.submitted, (index, self.submitted)
        release = self.now_ns if release_ns is None else release_ns
        assert release >= self.now_ns, (release, self.now_ns)
        self.batches.append(micro_batch)
        self._rows.append(self._row(micro_batch))
        if after is not None:
            assert after < index, (after, index)
            self._held.append(_Held(index, after, release))
            self._arrivals[0].append(_FOREVER)
            if after < self._next[-1]:
                self._let_go(after, self._ends.get(after, 0))
            return
        self._arrivals[0].append(release)
        self._wake(release, self._owners[0])

    def _let_go(self, ended: int, end_ns: int) -> None:
        """Micro-batch `ended` ends at `end_ns`: say when those held for it enter."""
        for place, held in enumerate(self._held):
            if held.after == ended and held.enters_ns == _FOREVER:
                enters_ns = max(held.release_ns, end_ns)
                self._held[place] = held._replace(enters_ns=enters_ns)
                self._arrivals[0][held.index - self._next[0]] = enters_ns
                self._wake(enters_ns, self._owners[0])

    def _first_held(self, time_ns: int) -> int | None:
        """The first micro-batch that is submitted and has not entered at this moment."""
        return next((held.index for held in self._held if held.enters_ns > time_ns), None)

    def _row(self, micro_batch: MicroBatch) -> _Row:
        seconds = stage_seconds(self.cost, micro_batch, self.layout.stages)
        if self.transfer is _no_transfer:
            transfer: tuple[int, ...] = (0,) * len(seconds)
        elif self.uniform:
            transfer = (round(self.transfer(1, micro_batch) * _NS),) * len(seconds)
        else:
            transfer = tuple(
                0 if stage == 0 or turn else round(self.transfer(stage, micro_batch) * _NS)
                for stage, turn in enumerate(self._turns)
            )
        return _Row(tuple([round(s * _NS) or 1 for s in seconds]), transfer)

    def _wake(self, time_ns: int, rank: int) -> None:
        """Ask a rank at this time; one integer per event, so that the heap compares fast."""
        heappush(self._events, time_ns * self._ranks + rank)

    def retire(self, index: int) -> None:
        """Note that the result of micro-batch `index` has been used: virtual now is its end."""
        self.now_ns = max(self.now_ns, self._ends.pop(index))
        self._wake(self.now_ns, self._owners[0])
        self._held = [held for held in self._held if held.enters_ns > self.now_ns]
        done = self._next[-1] - self._first
        del self.batches[:done], self._rows[:done]
        self._first += done

    def end_ns(self, index: int) -> int | None:
        """Virtual end of a micro-batch, or None while its last action is not settled."""
        return self._ends.get(index)

    def settle(
        self, awaited: int | None = None, *, until_ns: int | None = None, closed: bool = False
    ) -> list[Placed]:
        """Advance the clock as far as decisions are final; return them in virtual order.

        `awaited`: nothing will be submitted before this micro-batch's virtual end, because the
        caller waits for its result. `until_ns`: nor before this moment, if that is earlier.
        `closed`: nothing will be submitted any more. Without any of them: nor before now.
        """
        placed: list[Placed] = []
        stuck: set[int] = set()
        last_event = _FOREVER
        ends, last = self._ends, self._last - 1
        until = _FOREVER if until_ns is None else until_ns
        if until_ns is not None:
            self._wake(until_ns, self._owners[0])
        if awaited is not None:
            release_ns = min(ends.get(awaited, _FOREVER), until)
        else:
            release_ns = until if closed or until_ns is not None else self.now_ns
        ranks, events, free_ns = self._ranks, self._events, self._free_ns
        choose, is_final = self._choose, self._is_final
        while events and events[0] <= last_event:
            event = heappop(events)
            time_ns, rank = divmod(event, ranks)
            if free_ns[rank] > time_ns:
                continue  # busy: its own completion event comes later
            stage = choose(rank, time_ns)
            if time_ns >= release_ns and not is_final(rank, time_ns, stage):
                stuck.add(event)
                last_event = (time_ns + 1) * ranks - 1
                continue
            if stage is not None:
                placed.append(self._place(rank, stage, time_ns))
                if stage == last and awaited is not None:
                    release_ns = min(ends.get(awaited, _FOREVER), until)
        for event in stuck:  # asked again when the clock next moves
            heappush(events, event)
        return placed

    def _is_final(self, rank: int, time_ns: int, stage: int | None) -> bool:
        """What `order.settled` says; with stages in order of preference a newcomer comes last."""
        if self._held and self._first_held(time_ns) is not None:
            return True
        if self._preferred:
            return stage is not None or rank != self._owners[0]
        submitted, following, keys = self._first + len(self.batches), self._next, self._keys
        stages = self._stages_of[rank]
        known = [keys[stage] for stage in stages if following[stage] < submitted]
        if not known:
            return rank != self._owners[0]
        key = self._key
        return min(known) < min(key(stage, submitted) for stage in stages)

    def _first_ready(self, rank: int, time_ns: int) -> int | None:
        """What `order.choose` says when stages have a fixed order of preference."""
        for stage in self._stages_of[rank]:
            queue = self._arrivals[stage]
            if queue and queue[0] <= time_ns:
                return stage
        return None

    def _best(self, rank: int, time_ns: int) -> int | None:
        """What `order.choose` says when a rank waits for its best candidate.

        Held micro-batches, and those behind them, are none: the rank would wait for itself.
        """
        held = self._first_held(time_ns) if self._held else None
        known = self._first + len(self.batches) if held is None else held
        keys = self._keys
        best = None
        for stage in self._stages_of[rank]:
            if self._next[stage] < known and (best is None or keys[stage] < keys[best]):
                best = stage
        if best is None:
            return None
        queue = self._arrivals[best]
        return best if queue and queue[0] <= time_ns else None

    def _place(self, rank: int, stage: int, time_ns: int) -> Placed:
        index = self._next[stage]
        row = self._rows[index - self._first]
        start_ns = time_ns + self._gap_ns
        end_ns = busy_ns = start_ns + row[0][stage]
        self._next[stage] = index + 1
        if not self._preferred:
            self._keys[stage] = self._key(stage, index + 1)
        self._arrivals[stage].popleft()
        sent_ns = None
        after = stage + 1
        if after == self._last:
            self._ends[index] = end_ns
            if self._held:
                self._let_go(index, end_ns)
            if rank != self._owners[0]:  # a newcomer could start there now
                self._wake(end_ns, self._owners[0])
        elif self._turns[after]:
            self._arrivals[after].append(end_ns)
        else:
            sent_ns = self._send(after, end_ns, row[1][after])
            if self.blocking:
                busy_ns = sent_ns[1]
        self._free_ns[rank] = busy_ns
        heappush(self._events, busy_ns * self._ranks + rank)
        return _new(Placed, (_new(Action, (stage, index)), rank, start_ns, end_ns, sent_ns))

    def _send(self, stage: int, ready_ns: int, lasts_ns: int) -> tuple[int, int]:
        """Transfer the input of `stage` as soon as its channel is free; returns start and end."""
        start_ns = ready_ns
        if self.channels is not None:
            channel = self.channels[stage]
            start_ns = max(ready_ns, self._channel_ns[channel])
            self._channel_ns[channel] = start_ns + lasts_ns
        arrival_ns = start_ns + lasts_ns
        self._arrivals[stage].append(arrival_ns)
        owner = self._owners[stage]
        if self._free_ns[owner] <= arrival_ns:  # else its completion event comes later
            heappush(self._events, arrival_ns * self._ranks + owner)
        return start_ns, arrival_ns

    def fork(self) -> "Dispatcher":
        """A copy that goes on by itself: what would happen if."""
        twin = copy.copy(self)
        twin.batches, twin._rows = list(self.batches), list(self._rows)
        twin._next, twin._keys = list(self._next), list(self._keys)
        twin._arrivals = [deque(queue) for queue in self._arrivals]
        twin._free_ns, twin._channel_ns = list(self._free_ns), list(self._channel_ns)
        twin._events, twin._ends = list(self._events), dict(self._ends)
        twin._held = list(self._held)
        twin._choose = twin._first_ready if self._preferred else twin._best
        return twin

    def check(self) -> None:
        """Assert the invariants: stages in order, none forgotten, queues as long as needed."""
        previous = self.submitted
        for stage, following in enumerate(self._next):
            assert following + len(self._arrivals[stage]) == previous, f"stage {stage} lost one"
            previous = following
        assert all(index < previous for index in self._ends), "an end without its last action"
        assert all((h.enters_ns == _FOREVER) == (h.after >= previous) for h in self._held)
        if previous < self.submitted:
            assert self._events, "work left but nothing to wait for"
