"""How long stage boundaries take to cross, and what they hold up meanwhile.

Owns the transfer model: latency plus bytes over bandwidth, on as many channels as there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_vpp.core.batch import MicroBatch
from vllm_vpp.core.layout import Layout

__all__ = ["FREE", "TRIPS", "Links"]

# How often a transfer of vLLM's crosses the link in turn: the length of the description, the
# description, the tensors, the latter two once the receiver says that it is ready for them.
# Measured over gloo: 5.6 to 6.7 (docs/multi-node.md); what is within a tensor is not counted.
TRIPS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """A transfer of x tokens takes `latency` + x `token_bytes` / `bandwidth` seconds.

    `bandwidth`: bytes per second. `channels`: transfers of one rank to one neighbour that can run
    at once: 1 (all sweeps queue on one), 2 (sweeps alternate between two), or None (they never
    queue). `blocking`: the sending rank computes nothing meanwhile.
    """

    latency: float = 0.0
    token_bytes: float = 0.0
    bandwidth: float = float("inf")
    channels: int | None = None
    blocking: bool = False

    def time(self, stage: int, micro_batch: MicroBatch) -> float:
        """Seconds from the start of the transfer to the input of `stage` being there."""
        return self.latency + micro_batch.tokens * self.token_bytes / self.bandwidth

    def channel_of(self, layout: Layout) -> Sequence[int] | None:
        """Channel of the transfer into each stage, numbered from 0; None when none queue."""
        if self.channels is None:
            return None
        numbers: dict[tuple[int, int, int], int] = {}
        return [
            numbers.setdefault(
                (
                    layout.owner(max(stage - 1, 0)),
                    layout.owner(stage),
                    layout.sweep(stage) // 2 % self.channels,
                ),
                len(numbers),
            )
            for stage in range(layout.stages)
        ]


FREE = Links()
