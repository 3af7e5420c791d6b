"""Turns settled actions into the spans of a timeline.

Owns the split of a receive: WAIT from the moment the rank stands idle for it to the start of the
transfer, RECV from there to its end; SEND is the same transfer on the sender's side.
"""

from collections import deque
from collections.abc import Sequence
from operator import itemgetter

from vllm_vpp.core.dispatch import Placed
from vllm_vpp.core.layout import Layout
from vllm_vpp.core.timeline import Span, SpanKind

__all__ = ["spans_of"]


_START = Span._fields.index("start_ns")


def spans_of(layout: Layout, placed: Sequence[Placed]) -> tuple[Span, ...]:
    """Spans sorted by start, of actions in virtual order."""
    compute, send, recv, wait = (
        SpanKind.COMPUTE,
        SpanKind.SEND,
        SpanKind.RECV,
        SpanKind.WAIT,
    )
    spans: list[Span] = []
    free_ns: list[int | None] = [None] * layout.ranks
    transfers: list[deque[tuple[int, int, int]]] = [deque() for _ in range(layout.stages)]
    for (stage, index), rank, start_ns, end_ns, sent_ns in placed:
        if transfers[stage]:  # in order, and filled before the action runs
            sender, sent, got = transfers[stage].popleft()
            idle = free_ns[rank]
            if idle is not None and idle < sent:
                spans.append(Span(rank, wait, stage, index, idle, sent))
            if sent < got:
                spans.append(Span(rank, recv, stage, index, sent, got))
                spans.append(Span(sender, send, stage, index, sent, got))
        spans.append(Span(rank, compute, stage, index, start_ns, end_ns))
        free_ns[rank] = end_ns
        if sent_ns is not None:
            transfers[stage + 1].append((rank, *sent_ns))
    spans.sort(key=itemgetter(_START))
    return tuple(spans)
