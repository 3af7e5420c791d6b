"""Chunk times against chunk numbers as one SVG picture: points, the line through them, its band.

Owns the picture only; readable on light and on dark. One panel per curve, each on its own scale.
"""

import html
from collections.abc import Iterator, Mapping, Sequence

from vllm_vpp.sim.line import line

__all__ = ["curves"]

_COLUMNS, _WIDTH, _HEIGHT, _LEFT, _TOP, _BELOW = 2, 420, 170, 56, 30, 36
_FONT = 'font-family="system-ui,sans-serif" font-size="12"'
_POINT, _LINE, _BAND, _TEXT = "#3b7dd8", "#e08a1e", "#e08a1e44", "#777"


def curves(seconds: Mapping[str, Sequence[float]]) -> str:
    """The picture as text; chunk times in seconds by title, at least three each."""
    panel = (_LEFT + _WIDTH + 10, _TOP + _HEIGHT + _BELOW)
    rows = -(-len(seconds) // _COLUMNS)
    parts = [
        f'<g transform="translate({i % _COLUMNS * panel[0]} {i // _COLUMNS * panel[1]})">'
        + "".join(_panel(title, tau))
        + "</g>"
        for i, (title, tau) in enumerate(seconds.items())
    ]
    size = f"0 0 {_COLUMNS * panel[0]} {rows * panel[1]}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" {_FONT}>'
    return "\n".join([head, *parts, "</svg>\n"])


def _panel(title: str, tau: Sequence[float]) -> Iterator[str]:
    fitted = line(tau)
    top = max(*tau, *fitted.high)

    def place(k: float, value: float) -> tuple[float, float]:
        across = _LEFT + (k + 0.5) / len(tau) * _WIDTH
        return across, _TOP + (1 - max(value, 0.0) / top) * _HEIGHT

    yield f'<text x="{_LEFT}" y="18" fill="{_TEXT}" font-size="14">{html.escape(title)}</text>'
    bottom = _TOP + _HEIGHT
    yield f'<path d="M{_LEFT} {_TOP}V{bottom}H{_LEFT + _WIDTH}" fill="none" stroke="{_TEXT}"/>'
    for share in (0.0, 0.5, 1.0):
        at = f'x="{_LEFT - 6}" y="{bottom - share * _HEIGHT + 4:.0f}"'
        yield f'<text {at} text-anchor="end" fill="{_TEXT}">{share * top:.2f} s</text>'
    for k in (0, len(tau) - 1):
        at = f'x="{place(k, 0)[0]:.0f}" y="{bottom + 16}"'
        yield f'<text {at} text-anchor="middle" fill="{_TEXT}">{k}</text>'
    edge = [place(k, v) for k, v in enumerate(fitted.high)]
    edge += [place(k, v) for k, v in reversed(list(enumerate(fitted.low)))]
    yield f'<polygon points="{_points(edge)}" fill="{_BAND}"/>'
    ends = [place(k, fitted.at(k)) for k in (0, len(tau) - 1)]
    yield f'<polyline points="{_points(ends)}" fill="none" stroke="{_LINE}" stroke-width="2"/>'
    for k, value in enumerate(tau):
        x, y = place(k, value)
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{_POINT}"/>'


def _points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
