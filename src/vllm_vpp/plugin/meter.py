"""What the engine core and its ranks write to the `Board` as they go.

Owns the sums. Times are monotonic nanoseconds, read where the caller has them anyway.
"""

from collections.abc import Callable, Sequence

from vllm_vpp.core.batch import Chunk
from vllm_vpp.plugin.board import Board, EngineNumbers, RankNumbers
from vllm_vpp.plugin.message import Took
from vllm_vpp.plugin.transport import Arrival

__all__ = ["EngineMeter", "RankMeter"]

_S = 1e-9


class EngineMeter:
    """Counts what the engine submits and gets back; does nothing without a board, or not `on`."""

    def __init__(self, board: Board | None) -> None:
        self.on = True
        self._board = board
        self._active_ns = 0
        self._since_ns: int | None = None
        self._chunks = self._tokens = 0

    def submitted(self, chunks: Sequence[Chunk]) -> None:
        """Count a micro-batch; decode steps are no chunks."""
        for chunk in chunks:
            if chunk.tokens > 1:
                self._chunks += 1
                self._tokens += chunk.tokens

    def update(self, now_ns: int, in_flight: int, model_error: float, replans: int) -> None:
        """Write all numbers; `in_flight` is the number from now on."""
        if self._board is None:
            return
        if not self.on:
            self._since_ns = None
            return
        if self._since_ns is not None:
            self._active_ns += now_ns - self._since_ns
        self._since_ns = now_ns if in_flight else None
        self._board.set_engine(
            EngineNumbers(
                self._active_ns * _S, in_flight, self._chunks, self._tokens, model_error, replans
            )
        )

    def close(self) -> None:
        """Take the board away."""
        if self._board is not None:
            self._board.remove()


class RankMeter:
    """Adds up what a rank does; does nothing without a board, or not `on`."""

    def __init__(self, board: Board | None, rank: int) -> None:
        self.on = True
        self._board, self._rank = board, rank
        self._sent: dict[int, int] = {}
        self._taken: dict[int, int] = {}

    def close(self) -> None:
        """Take the board away: the engine may have been killed before it could."""
        if self._board is not None:
            self._board.remove()

    def sender(self, stage: int) -> Callable[[int], None]:
        """Call it with the time whenever an input of `stage` is sent."""

        def sent(at_ns: int) -> None:
            number = self._sent[stage] = self._sent.get(stage, -1) + 1
            if self._board is not None and self.on:
                self._board.set_sent(stage, number, at_ns)

        return sent

    def computed(self, took: Took) -> None:
        """Add what the device took for an action."""
        if self._board is not None and self.on:
            self._board.add_rank(self._rank, RankNumbers(took.lasted_ns * _S, 0, 0, 0))

    def ran(self, stage: int, asked_ns: int, start_ns: int, arrival: Arrival | None) -> None:
        """Add an action: when its input was asked for, and when it started."""
        if self._board is None:
            return
        done_ns = None if arrival is None else arrival.done_ns
        if done_ns is not None:
            self._taken[stage] = self._taken.get(stage, -1) + 1
        if not self.on:
            return
        waited_ns = exposed_ns = 0
        if done_ns is not None:
            sent_ns = self._board.sent_ns(stage, self._taken[stage])
            waited_ns = start_ns - asked_ns
            if sent_ns is not None:
                exposed_ns = max(0, min(start_ns, done_ns) - max(asked_ns, sent_ns))
        more = RankNumbers(0, waited_ns * _S, exposed_ns * _S, 1)
        self._board.add_rank(self._rank, more)
