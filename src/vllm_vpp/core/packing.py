"""How much of the next prompt may follow a long one while that drains.

Owns the rule: leading chunks of the next prompt fill the pipeline behind the last chunk of the
current one, as many and as large as delay its first token by no more than `TOLERANCE` of its time
to first token. The delay is looked up in virtual time, by letting a copy of the dispatcher run on
with the chunk and without. For equal chunks on a V of two ranks this is the paper's window of
(N + 1) t. Prompts of a single micro-batch are not protected: nothing is packed around them.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.core.dispatch import Dispatcher

__all__ = ["TOLERANCE", "Packing"]

TOLERANCE = 0.01
_HALVINGS = 5  # sizes tried: the whole chunk, a half, ..., a 32nd
_LEAST = 128  # tokens of a chunk worth a step


class _Draining(NamedTuple):
    """A long prompt whose last chunk is on its way: when its first chunk entered, when it ends."""

    request: str
    since_ns: int
    due_ns: int


@dataclass(slots=True)
class Packing:
    """Tell it what was submitted and what came back; ask it for room.

    `enabled`: without packing the next prompt waits until the long one before it is done.
    """

    dispatcher: Dispatcher
    enabled: bool = True
    tolerance: float = TOLERANCE
    _since: dict[str, int] = field(init=False, default_factory=dict)
    _draining: dict[int, _Draining] = field(init=False, default_factory=dict)

    @property
    def watches(self) -> bool:
        """Whether there is a long prompt, in the middle or draining, that others could delay."""
        return bool(self._draining or self._since)

    def begun(self, request: str) -> bool:
        """Whether it is a long prompt in the middle; its last chunk then shares with nobody."""
        return request in self._since

    def submitted(self, micro_batch: MicroBatch, ending: Collection[str]) -> None:
        """Note a micro-batch just submitted; `ending`: requests whose prompt ends in it."""
        now_ns = self.dispatcher.now_ns
        for chunk in micro_batch.chunks:
            if chunk.request not in ending:
                if chunk.tokens > 1:
                    self._since.setdefault(chunk.request, now_ns)
                continue
            since_ns = self._since.pop(chunk.request, None)
            if since_ns is not None:
                due_ns = self._end_ns(micro_batch.index, ())
                self._draining[micro_batch.index] = _Draining(chunk.request, since_ns, due_ns)

    def finished(self, index: int) -> None:
        """Note that the result of a micro-batch has been used."""
        self._draining.pop(index, None)

    def forget(self, request: str) -> None:
        """Note that nobody waits for a request's first token any more (aborted, preempted)."""
        self._since.pop(request, None)
        self._draining = {i: d for i, d in self._draining.items() if d.request != request}

    def fits(self, chunks: Sequence[Chunk]) -> bool:
        """Whether these may be submitted now, as one micro-batch."""
        return not self._draining or (self.enabled and not self._delays(chunks))

    def room(self, chunk: Chunk, block: int) -> int:
        """Tokens of `chunk` that may be submitted now; 0 to wait for the next result."""
        if not self._draining:
            return chunk.tokens
        if not self.enabled:
            return 0
        size = chunk.tokens
        for _ in range(_HALVINGS + 1):
            if not self._delays([chunk._replace(tokens=size)]):
                return size
            size = size // 2 // block * block
            if size < max(block, _LEAST):
                break
        return 0

    def _delays(self, chunks: Sequence[Chunk]) -> bool:
        """Whether a draining prompt would come too late with this micro-batch behind it."""
        return any(
            self._end_ns(index, chunks) - due_ns > self.tolerance * (due_ns - since_ns)
            for index, (_, since_ns, due_ns) in self._draining.items()
        )

    def _end_ns(self, index: int, chunks: Sequence[Chunk]) -> int:
        """Virtual end of a micro-batch if nothing but `chunks` is submitted any more."""
        known = self.dispatcher.end_ns(index)
        if known is not None:
            return known
        ahead = self.dispatcher.fork()
        if chunks:
            ahead.submit(MicroBatch(ahead.submitted, tuple(chunks)))
        ahead.settle(closed=True)
        end_ns = ahead.end_ns(index)
        assert end_ns is not None
        return end_ns
