"""What a run spends besides compute: gaps between actions, and transfers.

Owns measuring them from timelines, as parameters of the simulator.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from vllm_vpp.core.timeline import SpanKind, Timeline
from vllm_vpp.errors import InputError
from vllm_vpp.sim.links import Links

__all__ = ["NONE", "Overheads", "measure_overheads"]


class Overheads(NamedTuple):
    """Seconds: `gap` before each action, `latency` of a transfer and `per_token` of it."""

    gap: float = 0.0
    latency: float = 0.0
    per_token: float = 0.0

    @property
    def links(self) -> Links:
        """The transfers as a link model; transfers of one direction queue."""
        bandwidth = 1 / self.per_token if self.per_token else float("inf")
        return Links(latency=self.latency, token_bytes=1.0, bandwidth=bandwidth, channels=1)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "Overheads":
        """From parsed JSON. Raises InputError for anything that is no time."""
        values = {name: data.get(name, 0.0) for name in cls._fields}
        for name, value in values.items():
            if not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise InputError(
                    f"overheads: {name}={value!r}: must be seconds of at least 0; calibrate again"
                )
        return cls(**values)


NONE = Overheads()


def measure_overheads(timelines: Sequence[Timeline]) -> Overheads:
    """Medians of gaps between actions whose input was there; a line through transfer times."""
    gaps: list[int] = []
    sends: list[tuple[int, int]] = []
    for timeline in timelines:
        gaps += _gaps(timeline)
        tokens = {batch.index: batch.tokens for batch in timeline.micro_batches}
        sends += [
            (tokens.get(s.micro_batch, 0), s.end_ns - s.start_ns)
            for s in timeline.spans
            if s.kind is SpanKind.SEND
        ]
    latency, per_token = _line(sends)
    return Overheads(gap=median(gaps) * 1e-9 if gaps else 0.0, latency=latency, per_token=per_token)


def _gaps(timeline: Timeline) -> list[int]:
    """Nanoseconds between an action and the next of its rank, where that one's input had come."""
    arrived = {
        (s.stage, s.micro_batch): s.end_ns for s in timeline.spans if s.kind is SpanKind.RECV
    }
    ends: dict[tuple[int, int], int] = {}
    last: dict[int, int] = {}
    gaps = []
    for span in timeline.spans:
        if span.kind is not SpanKind.COMPUTE:
            continue
        key = (span.stage, span.micro_batch)
        before = arrived.get(key, ends.get((span.stage - 1, span.micro_batch), span.start_ns))
        if span.rank in last and span.stage and before <= last[span.rank]:
            gaps.append(span.start_ns - last[span.rank])
        last[span.rank] = ends[key] = span.end_ns
    return gaps


def _line(sends: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Seconds of a transfer of no token, and per token; robust to a few slow ones."""
    if not sends:
        return 0.0, 0.0
    tokens, lasts = (np.array(column, dtype=float) for column in zip(*sends, strict=True))
    if np.ptp(tokens) == 0:
        return float(np.median(lasts)) * 1e-9, 0.0
    usual = lasts <= np.quantile(lasts, 0.9)
    if np.ptp(tokens[usual]) == 0:
        usual[:] = True
    slope, intercept = np.polyfit(tokens[usual], lasts[usual], 1)
    if slope < 0:
        return float(np.median(lasts)) * 1e-9, 0.0
    return max(float(intercept), 0.0) * 1e-9, float(slope) * 1e-9
