"""What ran when: one record for simulated and for measured runs.

Owns spans and their text and JSON forms. Leaves all arithmetic to `metrics`. Times are integer
nanoseconds on one clock shared by all ranks.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.core.layout import Layout
from vllm_vpp.errors import InputError

__all__ = ["Span", "SpanKind", "Timeline"]


class SpanKind(StrEnum):
    """What a rank does in a span.

    A receive is split at the moment the matching send starts: WAIT before, RECV after. SEND is the
    same transfer seen by the sender.
    """

    COMPUTE = "compute"
    SEND = "send"
    RECV = "recv"
    WAIT = "wait"

    @property
    def is_transfer(self) -> bool:
        """Whether bytes move."""
        return self in (SpanKind.SEND, SpanKind.RECV)


class Span(NamedTuple):
    """`stage` is the stage computed, or the stage that a transfer is an input of."""

    rank: int
    kind: SpanKind
    stage: int
    micro_batch: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Spans of a run, sorted by start, with the micro-batches they talk about.

    `source` says where it comes from: "simulated" or "measured". `notes` carries hardware, versions
    and settings.
    """

    layout: Layout
    spans: tuple[Span, ...]
    micro_batches: tuple[MicroBatch, ...]
    source: str
    notes: dict[str, str] = field(default_factory=dict)

    def of(self, rank: int, *kinds: SpanKind) -> Iterator[Span]:
        """Spans of a rank, of the given kinds or of all."""
        return (s for s in self.spans if s.rank == rank and (not kinds or s.kind in kinds))

    @property
    def start_ns(self) -> int:
        """First start of compute over all ranks; InputError when nothing was computed."""
        return self._window()[0]

    @property
    def end_ns(self) -> int:
        """Last end of compute over all ranks."""
        return self._window()[1]

    def _window(self) -> tuple[int, int]:
        compute = [s for s in self.spans if s.kind is SpanKind.COMPUTE]
        if not compute:
            raise InputError("timeline: no compute span in it; record at least one micro-batch")
        return min(s.start_ns for s in compute), max(s.end_ns for s in compute)

    def between(self, start_ns: int, end_ns: int) -> "Timeline":
        """The part whose spans lie within [start_ns, end_ns], micro-batches kept."""
        spans = tuple(s for s in self.spans if s.start_ns >= start_ns and s.end_ns <= end_ns)
        return Timeline(
            layout=self.layout,
            spans=spans,
            micro_batches=self.micro_batches,
            source=self.source,
            notes=self.notes,
        )

    def to_json(self) -> str:
        """Compact JSON; inverse of `from_json`."""
        return json.dumps(
            {
                "ranks": self.layout.ranks,
                "sweeps": self.layout.sweeps,
                "source": self.source,
                "notes": self.notes,
                "micro_batches": [
                    [m.index, [list(c) for c in m.chunks]] for m in self.micro_batches
                ],
                "spans": [list(s) for s in self.spans],
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> "Timeline":
        """Inverse of `to_json`. Raises InputError for anything else."""
        try:
            data: dict[str, Any] = json.loads(text)
            return cls(
                layout=Layout(data["ranks"], data["sweeps"]),
                spans=tuple(Span(r, SpanKind(k), *rest) for r, k, *rest in data["spans"]),
                micro_batches=tuple(
                    MicroBatch(index, tuple(Chunk(*c) for c in chunks))
                    for index, chunks in data["micro_batches"]
                ),
                source=data["source"],
                notes=data["notes"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"timeline: not a timeline's JSON ({error}); give a file that this package wrote"
            ) from None
