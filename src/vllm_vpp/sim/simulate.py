"""Runs requests through a pipeline in virtual time.

Owns the loop that an engine's core runs: form a micro-batch while fewer than `depth` are in flight,
else wait for the oldest. Order and times of actions come from the dispatcher that the engine's
executor uses, so that what is simulated is what would be sent out.
"""

import gc
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.core.chunking import Policy
from vllm_vpp.core.cost import CostModel
from vllm_vpp.core.crowd import Crowd
from vllm_vpp.core.dispatch import Dispatcher, Placed
from vllm_vpp.core.layout import Layout
from vllm_vpp.core.order import Order
from vllm_vpp.core.packing import Packing
from vllm_vpp.core.schedule import Schedule
from vllm_vpp.core.timeline import Timeline
from vllm_vpp.errors import InputError
from vllm_vpp.sim.batching import Batcher, Progress
from vllm_vpp.sim.links import FREE, Links
from vllm_vpp.sim.request import Request
from vllm_vpp.sim.spans import spans_of

__all__ = ["Run", "Setup", "Source", "run_source", "simulate"]

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One configuration to simulate.

    cost: seconds of a stage on a micro-batch, launches included. depth: micro-batches in flight, by
    default one more than stages, and one more than ranks while requests decode beside prompts.
    limit: most tokens of a micro-batch. block: tokens of a KV block. gap: seconds a rank needs
    before each action (dispatch). host: seconds the engine needs to form and submit a micro-batch.
    sharing: whether a micro-batch may hold chunks of several prompts.
    packing: whether the next prompt may follow while a long one drains, as far as that does no harm
    (`core.packing`); None for at once, whatever it does.
    """

    layout: Layout
    cost: CostModel
    policy: Policy
    order: str = "greedy"
    depth: int | None = None
    limit: int = 1 << 40
    block: int = 16
    links: Links = FREE
    gap: float = 0.0
    host: float = 0.0
    sharing: bool = True
    packing: bool | None = True
    max_requests: int = 1 << 30

    def __post_init__(self) -> None:
        for name, least in (("depth", 1), ("limit", 1), ("block", 1), ("max_requests", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name}={value}: must be at least {least}; correct it")

    def dispatcher(self) -> Dispatcher:
        """A fresh virtual clock for this configuration."""
        return Dispatcher(
            Order.of(self.order, self.layout),
            self.cost,
            self.links.time,
            channels=self.links.channel_of(self.layout),
            blocking=self.links.blocking,
            gap=self.gap,
            uniform=True,
        )

    def packing_on(self, dispatcher: Dispatcher) -> Packing | None:
        """The packing rule; None where it never says no (stages in one line cannot overtake)."""
        if self.packing is None or (self.packing and self.layout.sweeps == 1):
            return None
        return Packing(dispatcher, enabled=self.packing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What happened: actions in virtual order, micro-batches, and the progress of each request."""

    setup: Setup
    placed: tuple[Placed, ...]
    micro_batches: tuple[MicroBatch, ...]
    requests: tuple[Progress, ...]

    @property
    def makespan(self) -> float:
        """Seconds from the first start of compute to the last end."""
        return (max(p.end_ns for p in self.placed) - self.placed[0].start_ns) / _NS

    @property
    def schedule(self) -> Schedule:
        """Order of actions of each rank."""
        return Schedule.from_order(self.setup.layout, (p.action for p in self.placed))

    @property
    def compute(self) -> float:
        """Seconds of compute of all ranks together (W)."""
        return sum(p.end_ns - p.start_ns for p in self.placed) / _NS

    def ttft(self) -> list[float]:
        """Seconds from arrival to first token, by request."""
        return [(r.token_ns[0] - r.arrival_ns) / _NS for r in self.requests]

    def tpot(self) -> list[float]:
        """(last - first token) / (n - 1) seconds, for requests with n > 1 tokens."""
        return [
            (r.token_ns[-1] - r.token_ns[0]) / (len(r.token_ns) - 1) / _NS
            for r in self.requests
            if len(r.token_ns) > 1
        ]

    def itl(self) -> list[float]:
        """Seconds between successive tokens, of all requests."""
        return [
            (after - before) / _NS
            for r in self.requests
            for before, after in zip(r.token_ns, r.token_ns[1:], strict=False)
        ]

    def timeline(self) -> Timeline:
        """The run as a timeline."""
        with _collector_paused():
            spans = spans_of(self.setup.layout, self.placed)
        return Timeline(
            layout=self.setup.layout,
            spans=spans,
            micro_batches=self.micro_batches,
            source="simulated",
            notes={"order": self.setup.order},
        )


def simulate(requests: Sequence[Request], setup: Setup) -> Run:
    """Run all requests to their end. Raises InputError when there are none."""
    if not requests:
        raise InputError("requests: none; give at least one")
    dispatcher = setup.dispatcher()
    batcher = Batcher(
        policy=setup.policy,
        limit=setup.limit,
        block=setup.block,
        sharing=setup.sharing,
        max_requests=setup.max_requests,
        packing=setup.packing_on(dispatcher),
        crowd=Crowd(setup.layout.depth_beside_decodes()) if setup.depth is None else None,
    )
    batcher.add(requests)
    with _collector_paused():
        placed, batches = run_source(setup, batcher, dispatcher)
    return Run(
        setup=setup,
        placed=tuple(placed),
        micro_batches=tuple(batches),
        requests=tuple(batcher.all.values()),
    )


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Millions of small tuples and not one cycle: looking for cycles takes a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Source(Protocol):
    """Where micro-batches come from, and who learns of their end."""

    def next(self, now_ns: int) -> tuple[Chunk, ...] | None:
        """Chunks of the next micro-batch, or None where none can be formed now."""
        ...

    def next_arrival(self) -> int | None:
        """When something will arrive that `next` does not know of yet."""
        ...

    def submitted(self, micro_batch: MicroBatch) -> None:
        """Note that the dispatcher has it."""
        ...

    def finish(self, micro_batch: MicroBatch, end_ns: int) -> None:
        """Note the end of a micro-batch."""
        ...


def run_source(
    setup: Setup, source: Source, dispatcher: Dispatcher
) -> tuple[list[Placed], list[MicroBatch]]:
    """Actions in virtual order, and the micro-batches; `dispatcher` is a fresh one."""
    depth = setup.layout.depth() if setup.depth is None else setup.depth
    host_ns = round(setup.host * _NS)
    placed: list[Placed] = []
    batches: list[MicroBatch] = []
    flight: deque[int] = deque()
    now_ns = 0
    while True:
        if len(flight) < depth:
            chunks = source.next(now_ns)
            if chunks is not None:
                now_ns += host_ns
                batches.append(MicroBatch(len(batches), chunks))
                dispatcher.submit(batches[-1], now_ns)
                source.submitted(batches[-1])
                flight.append(batches[-1].index)
                continue
        arrival_ns = source.next_arrival() if len(flight) < depth else None
        if not flight:
            if arrival_ns is None:
                return placed, batches
            now_ns = arrival_ns
            continue
        placed += dispatcher.settle(flight[0], until_ns=arrival_ns)
        end_ns = dispatcher.end_ns(flight[0])
        if end_ns is not None and (arrival_ns is None or end_ns <= arrival_ns):
            dispatcher.retire(flight[0])
            source.finish(batches[flight.popleft()], end_ns)
            now_ns = max(now_ns, end_ns)
        else:
            assert arrival_ns is not None
            now_ns = arrival_ns
