"""What goes into the next micro-batch: a small model of vLLM's scheduler.

Mirrors vllm.v1.core.sched.scheduler.Scheduler as far as timing goes: running decodes first, one
token each; then prompts in order, the chunk of the first one sized by the policy, the rest of that
size left to the prompts behind it; a prompt has several chunks in flight, a decode one token. What
may follow a long prompt is up to `core.packing`. Leaves KV blocks and preemption out.
"""

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.core.chunking import Policy, View, fit, heeds_load
from vllm_vpp.core.crowd import Crowd
from vllm_vpp.core.packing import Packing
from vllm_vpp.sim.request import Request

__all__ = ["Batcher", "Progress"]

_NS = 1_000_000_000


@dataclass(slots=True)
class Progress:
    """How far a request has come; times in nanoseconds, one per output token."""

    request: Request
    number: int
    computed: int
    arrival_ns: int
    token_ns: list[int] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether all output tokens are out."""
        return len(self.token_ns) >= self.request.output

    @property
    def prefilled(self) -> bool:
        """Whether the whole prompt has been scheduled."""
        return self.computed >= self.request.prompt

    @property
    def place(self) -> tuple[int, int, int]:
        """Sort key: who is served first."""
        return self.request.priority, self.arrival_ns, self.number


@dataclass(slots=True, kw_only=True)
class Batcher:
    """Mutable queues of the scheduler. `sharing`: whether a micro-batch may mix prompts.

    `crowd`: what keeps prompts back while requests decode; None for nothing.
    """

    policy: Policy
    limit: int
    block: int
    sharing: bool
    max_requests: int
    packing: Packing | None
    crowd: Crowd | None = None
    all: dict[str, Progress] = field(init=False, default_factory=dict)
    _coming: list[tuple[int, int, str]] = field(init=False, default_factory=list)
    _followers: dict[str, list[Request]] = field(init=False, default_factory=dict)
    _prefill: list[tuple[tuple[int, int, int], str]] = field(init=False, default_factory=list)
    _decode: list[tuple[tuple[int, int, int], str]] = field(init=False, default_factory=list)
    _running: set[str] = field(init=False, default_factory=set)
    _waiting: int = field(init=False, default=0)
    _decoding: int = field(init=False, default=0)
    _heeds_load: bool = field(init=False)

    def __post_init__(self) -> None:
        self._heeds_load = heeds_load(self.policy)

    def add(self, requests: Sequence[Request]) -> None:
        """Take requests in; each one waits for its arrival, or for the one it comes after."""
        for number, request in enumerate(requests):
            arrival_ns = round(request.arrival * _NS)
            self.all[request.name] = Progress(request, number, request.cached, arrival_ns)
            if request.after is None:
                self._coming.append((arrival_ns, number, request.name))
            else:
                self._followers.setdefault(request.after, []).append(request)
        heapify(self._coming)

    def next_arrival(self) -> int | None:
        """Nanosecond of the next arrival yet to come."""
        return self._coming[0][0] if self._coming else None

    def next(self, now_ns: int) -> tuple[Chunk, ...] | None:
        """Chunks of the next micro-batch at this moment, or None when there is nothing to run."""
        while self._coming and self._coming[0][0] <= now_ns:
            progress = self.all[heappop(self._coming)[2]]
            insort(self._prefill, (progress.place, progress.request.name))
        if self._crowded:
            return None
        chunks: list[Chunk] = []
        if self._decode:
            decoding = self._decode[: self.limit]
            del self._decode[: self.limit]
            chunks = [self._decode_chunk(self.all[name]) for _, name in decoding]
        if self._prefill:
            chunks += self._prompt_chunks(self.limit - len(chunks))
        return tuple(chunks) or None

    @property
    def _crowded(self) -> bool:
        """Whether another micro-batch with a prompt would keep requests that decode waiting."""
        if self.crowd is None or not self._decoding or not self.crowd.full:
            return False
        return bool(self._prefill) and (
            len(self._running) < self.max_requests or self._prefill[0][1] in self._running
        )

    def _decode_chunk(self, progress: Progress) -> Chunk:
        prefix = progress.request.prompt + len(progress.token_ns) - 1
        return Chunk(progress.request.name, prefix, 1)

    def _prompt_chunks(self, room: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        allowance: int | None = None
        self._waiting = self._load() if self._heeds_load else 0
        waiting, at = self._prefill, 0
        while at < len(waiting):
            name = waiting[at][1]
            progress = self.all[name]
            if room <= 0 or not (name in self._running or len(self._running) < self.max_requests):
                break
            view = self._view(progress, room if allowance is None else allowance)
            wanted = self.policy.size(view)
            size = fit(wanted, view)  # what `next_chunk` says
            if allowance is None:
                allowance = min(wanted, view.limit)
                if self.packing is not None and self.packing.watches:
                    size, allowance = self._packed(Chunk(name, progress.computed, size), allowance)
                    if not size:
                        break
            allowance -= size
            room = allowance
            chunks.append(Chunk(name, progress.computed, size))
            progress.computed += size
            self._running.add(name)
            if progress.computed >= progress.request.prompt:
                del waiting[at]
            else:
                at += 1
            if not self.sharing:
                break
        return chunks

    def _packed(self, first: Chunk, allowance: int) -> tuple[int, int]:
        """Tokens of the first chunk, and of the step; 0 to wait.

        The step is asked about as if the first prompt filled it.
        """
        assert self.packing is not None
        whole = first._replace(tokens=max(allowance, first.tokens))
        if not self.packing.begun(first.request) and self.packing.fits((whole,)):
            return first.tokens, allowance
        room = self.packing.room(first, self.block)
        return room, room

    def _view(self, progress: Progress, limit: int) -> View:
        request = progress.request
        return View(
            progress.computed,
            request.prompt,
            limit,
            start=request.cached,
            block=self.block,
            waiting=self._waiting,
        )

    def _load(self) -> int:
        """Prompt tokens not scheduled yet, of all requests that have arrived."""
        mine = (self.all[name] for _, name in self._prefill)
        return sum(progress.request.prompt - progress.computed for progress in mine)

    def submitted(self, micro_batch: MicroBatch) -> None:
        """Note that a micro-batch is on its way."""
        if self.crowd is not None:
            self.crowd.submitted(micro_batch)
        if self.packing is not None:
            ending = {c.request for c in micro_batch.chunks if self.all[c.request].prefilled}
            self.packing.submitted(micro_batch, ending)

    def finish(self, micro_batch: MicroBatch, end_ns: int) -> None:
        """Note that a micro-batch is done: tokens come out, decodes go on, followers arrive."""
        if self.packing is not None:
            self.packing.finished(micro_batch.index)
        if self.crowd is not None:
            self.crowd.finished(micro_batch.index)
        for name, prefix, tokens in micro_batch.chunks:
            progress = self.all[name]
            if prefix + tokens < progress.request.prompt:
                continue
            progress.token_ns.append(end_ns)
            first = len(progress.token_ns) == 1
            if not progress.done:
                self._decoding += first
                insort(self._decode, (progress.place, name))
                continue
            self._decoding -= not first
            self._running.discard(name)
            for follower in self._followers.pop(name, ()):
                waiting = self.all[follower.name]
                waiting.arrival_ns = max(waiting.arrival_ns, end_ns)
                heappush(self._coming, (waiting.arrival_ns, waiting.number, follower.name))
