"""Timelines as one SVG picture, for a README: no script, readable on light and on dark.

Owns the picture only. One band of rows per timeline on a common time axis; colour by sweep, the
number of the micro-batch where it fits.
"""

import html
from collections.abc import Iterator, Mapping

from vllm_vpp.core.timeline import SpanKind, Timeline

__all__ = ["svg"]

_WIDTH, _MARGIN, _ROW, _GAP = 960, 70, 30, 46
_SWEEPS = ("#3b7dd8", "#e08a1e", "#2f9e6e", "#a05bbf")  # told apart by colour-blind readers too
_FONT = 'font-family="system-ui,sans-serif" font-size="12"'
_IDLE, _TEXT = "#8884", "#777"


def svg(timelines: Mapping[str, Timeline]) -> str:
    """The picture as text. Raises InputError for a timeline without compute."""
    longest = max(t.end_ns - t.start_ns for t in timelines.values())
    scale = (_WIDTH - _MARGIN - 10) / longest
    parts: list[str] = []
    top = 0
    for name, timeline in timelines.items():
        parts += _band(name, timeline, top, scale)
        top += _GAP + _ROW * timeline.layout.ranks
    height = top + 14
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" {_FONT}>',
            *parts,
            "</svg>\n",
        ]
    )


def _band(name: str, timeline: Timeline, top: int, scale: float) -> Iterator[str]:
    start = timeline.start_ns
    width = (timeline.end_ns - start) * scale
    yield (
        f'<text x="{_MARGIN}" y="{top + 18}" fill="{_TEXT}" font-size="14">{html.escape(name)}: '
        f"{(timeline.end_ns - start) * 1e-9:.2f} s</text>"
    )
    for rank in range(timeline.layout.ranks):
        y = top + 28 + rank * _ROW
        at = f'x="{_MARGIN - 8}" y="{y + 18}"'
        yield f'<text {at} text-anchor="end" fill="{_TEXT}">rank {rank}</text>'
        yield _box(_MARGIN, y, width, _IDLE)
        for span in timeline.of(rank, SpanKind.COMPUTE):
            x = _MARGIN + (span.start_ns - start) * scale
            wide = (span.end_ns - span.start_ns) * scale
            colour = _SWEEPS[timeline.layout.sweep(span.stage) % len(_SWEEPS)]
            yield _box(x, y, max(wide - 0.8, 0.4), colour)
            number = str(span.micro_batch)
            if wide > 8 * len(number) + 4:
                yield (
                    f'<text x="{x + wide / 2:.1f}" y="{y + 17}" text-anchor="middle" fill="#fff">'
                    f"{number}</text>"
                )


def _box(x: float, y: float, width: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_ROW - 6}" fill="{colour}"/>'
