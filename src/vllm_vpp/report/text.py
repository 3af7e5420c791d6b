"""A timeline as text: one row per rank, one column per slice of time.

Owns the picture. Each sweep has its own fill, so stages can be told apart without colour; the
number of the micro-batch stands at the start of an action where it fits.
"""

from vllm_vpp.core.layout import Layout
from vllm_vpp.core.timeline import Span, SpanKind, Timeline

__all__ = ["render"]

_FILLS = "▒█░▓"
_IDLE = "·"
_NS = 1_000_000_000


def render(timeline: Timeline, width: int) -> str:
    """Rows of at most `width` columns, a time axis and a legend. Raises InputError if empty."""
    layout = timeline.layout
    names = [f"rank {rank}" for rank in range(layout.ranks)]
    margin = max(map(len, names)) + 1
    columns = max(width - margin, 10)
    start_ns, end_ns = timeline.start_ns, timeline.end_ns
    scale = columns / (end_ns - start_ns)
    rows = [[_IDLE] * columns for _ in names]
    for span in timeline.spans:
        if span.kind is SpanKind.COMPUTE:
            _draw(rows[span.rank], span, start_ns, scale, layout)
    lines = [name.ljust(margin) + "".join(row) for name, row in zip(names, rows, strict=True)]
    return "\n".join([*lines, _axis(margin, columns, (end_ns - start_ns) / _NS), _legend(layout)])


def _draw(row: list[str], span: Span, start_ns: int, scale: float, layout: Layout) -> None:
    """A column shows what covers its middle."""
    first = round((span.start_ns - start_ns) * scale)
    last = min(round((span.end_ns - start_ns) * scale), len(row))
    fill = _FILLS[layout.sweep(span.stage) % len(_FILLS)]
    row[first:last] = fill * (last - first)
    number = str(span.micro_batch)
    if len(number) < last - first:  # leaves at least one column of fill
        row[first : first + len(number)] = number


def _axis(margin: int, columns: int, seconds: float) -> str:
    end = f"{seconds:.4g} s"
    return " " * margin + "0" + end.rjust(columns - 1)


def _legend(layout: Layout) -> str:
    sweeps = [
        f"{_FILLS[sweep % len(_FILLS)]} stage{'s' * (layout.ranks > 1)} "
        + (f"{first}-{first + layout.ranks - 1}" if layout.ranks > 1 else f"{first}")
        for sweep in range(layout.sweeps)
        for first in (sweep * layout.ranks,)
    ]
    return "  ".join([*sweeps, f"{_IDLE} idle", "numbers: micro-batch"])
