"""Timelines in Chrome's trace format, for Perfetto (ui.perfetto.dev) and chrome://tracing.

Owns the mapping: a process per rank, a thread per lane (compute, send, receive), an arrow from each
send to its receive. Slices on one lane must not overlap, so a kind gets further lanes where needed.
Format: "Trace Event Format", Google, 2016.
"""

import json
from typing import Any

from vllm_vpp.core.batch import MicroBatch
from vllm_vpp.core.timeline import Span, SpanKind, Timeline

__all__ = ["chrome_trace"]

_LANES = {
    SpanKind.COMPUTE: ("compute", 0),
    SpanKind.SEND: ("send", 100),
    SpanKind.RECV: ("receive", 200),
    SpanKind.WAIT: ("receive", 200),
}
_SHOWN_CHUNKS = 8


def chrome_trace(timeline: Timeline) -> str:
    """The trace as JSON; times in microseconds from the first compute."""
    batches = {batch.index: batch for batch in timeline.micro_batches}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
        for rank in range(timeline.layout.ranks)
    ]
    lanes: dict[tuple[int, int], list[int]] = {}
    for span in timeline.spans:
        name, first = _LANES[span.kind]
        ends = lanes.setdefault((span.rank, first), [])
        known = len(ends)
        lane = _free_lane(ends, span)
        if lane == known:
            events.append(_lane_name(span.rank, first + lane, name, lane))
        events.append(_slice(span, first + lane, timeline.start_ns, batches))
        events += _arrow(span, first + lane, timeline.start_ns)
    return json.dumps(
        {
            "traceEvents": events,
            "displayTimeUnit": "ms",
            "otherData": {"source": timeline.source, **timeline.notes},
        },
        separators=(",", ":"),
    )


def _free_lane(ends: list[int], span: Span) -> int:
    """First lane that is free at the start of the span; occupies it."""
    for lane, end_ns in enumerate(ends):
        if end_ns <= span.start_ns:
            ends[lane] = span.end_ns
            return lane
    ends.append(span.end_ns)
    return len(ends) - 1


def _lane_name(rank: int, lane: int, name: str, number: int) -> dict[str, Any]:
    text = name if number == 0 else f"{name} {number + 1}"
    return {"ph": "M", "name": "thread_name", "pid": rank, "tid": lane, "args": {"name": text}}


def _slice(span: Span, lane: int, origin_ns: int, batches: dict[int, MicroBatch]) -> dict[str, Any]:
    chunks = batches[span.micro_batch].chunks if span.micro_batch in batches else ()
    label = f"s{span.stage}/C{span.micro_batch}"
    return {
        "ph": "X",
        "name": f"wait {label}" if span.kind is SpanKind.WAIT else label,
        "cat": span.kind.value,
        "pid": span.rank,
        "tid": lane,
        "ts": (span.start_ns - origin_ns) / 1000,
        "dur": (span.end_ns - span.start_ns) / 1000,
        "args": {
            "stage": span.stage,
            "micro_batch": span.micro_batch,
            "tokens": sum(chunk.tokens for chunk in chunks),
            "chunks": [f"{c.request}: {c.tokens} after {c.prefix}" for c in chunks[:_SHOWN_CHUNKS]],
        },
    }


def _arrow(span: Span, lane: int, origin_ns: int) -> list[dict[str, Any]]:
    """The end of an arrow that this span holds: `s` in a send, `f` in a receive."""
    if not span.kind.is_transfer:
        return []
    sends = span.kind is SpanKind.SEND
    at_ns = span.start_ns if sends else max(span.start_ns, span.end_ns - 1)
    event = {
        "ph": "s" if sends else "f",
        "name": "transfer",
        "cat": "transfer",
        "id": f"s{span.stage}/C{span.micro_batch}",
        "pid": span.rank,
        "tid": lane,
        "ts": (at_ns - origin_ns) / 1000,
    }
    return [event if sends else event | {"bp": "e"}]
