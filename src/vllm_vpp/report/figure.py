"""Timelines as an interactive figure, and as a page that needs nothing else.

Owns the plotly figure: timelines below each other on one time axis, then the compute time of each
micro-batch against its number. Imports plotly only when called.
"""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from vllm_vpp.core.intervals import merge, subtract
from vllm_vpp.core.timeline import Span, SpanKind, Timeline

__all__ = ["figure", "page", "write"]

_SWEEPS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#9d755d", "#72b7b2")
_TRANSFER = "#999999"
_WAIT = "#dddddd"
_NS = 1_000_000_000


def figure(timelines: Mapping[str, Timeline]) -> Any:
    """A plotly Figure of named timelines. Raises InputError where one holds no compute."""
    from plotly.subplots import make_subplots

    names = list(timelines)
    heights = [max(t.layout.ranks, 2) for t in timelines.values()]
    chart = make_subplots(
        rows=len(names) + 1,
        cols=1,
        subplot_titles=[
            *(f"{name} (seconds)" for name in names),
            "compute time of each micro-batch",
        ],
        row_heights=[*heights, 4],
        vertical_spacing=0.25 / (len(names) + 1),
    )
    known: set[str] = set()
    for row, timeline in enumerate(timelines.values(), 1):
        _draw(chart, row, timeline, known)
        ranks = [f"rank {rank}" for rank in range(timeline.layout.ranks)]
        chart.update_yaxes(autorange="reversed", categoryarray=ranks, row=row, col=1)
        if row > 1:  # one time axis for all
            chart.update_xaxes(matches="x", row=row, col=1)
    for number, (name, timeline) in enumerate(timelines.items()):
        _curve(chart, len(names) + 1, (name, _SWEEPS[number % len(_SWEEPS)]), timeline)
    chart.update_xaxes(title_text="micro-batch", row=len(names) + 1, col=1)
    chart.update_yaxes(title_text="seconds", rangemode="tozero", row=len(names) + 1, col=1)
    chart.update_layout(
        barmode="overlay",
        template="plotly_white",
        height=220 + 60 * sum(heights) + 280,
        legend={"orientation": "h"},
        uniformtext={"minsize": 8, "mode": "hide"},
    )
    return chart


class _Lane(NamedTuple):
    """How a kind of bar looks: its name in the legend, colour, thickness and place in the row."""

    name: str
    colour: str
    width: float
    offset: float


def _draw(chart: Any, row: int, timeline: Timeline, known: set[str]) -> None:
    """One row of bars per rank; `known` holds the names that the legend has already."""
    import plotly.graph_objects as go

    layout, origin = timeline.layout, timeline.start_ns
    lanes: dict[_Lane, list[Span]] = {}
    others = (s for s in timeline.spans if s.kind is not SpanKind.WAIT)
    for span in [*_idle_waits(timeline), *others]:
        if span.kind is SpanKind.COMPUTE:
            sweep = layout.sweep(span.stage)
            lane = _Lane(f"sweep {sweep}", _SWEEPS[sweep % len(_SWEEPS)], 0.7, -0.35)
        elif span.kind.is_transfer:
            lane = _Lane("transfer", _TRANSFER, 0.1, 0.36)
        else:
            lane = _Lane("idle, waiting for input", _WAIT, 0.7, -0.35)
        lanes.setdefault(lane, []).append(span)
    for lane, spans in lanes.items():
        computes = lane.name.startswith("sweep")
        chart.add_trace(
            go.Bar(
                orientation="h",
                base=[(s.start_ns - origin) / _NS for s in spans],
                x=[(s.end_ns - s.start_ns) / _NS for s in spans],
                y=[f"rank {s.rank}" for s in spans],
                width=lane.width,
                offset=lane.offset,
                marker={"color": lane.colour, "line": {"color": "white", "width": 0.5}},
                name=lane.name,
                legendgroup=lane.name,
                showlegend=lane.name not in known,
                text=[str(s.micro_batch) if computes else "" for s in spans],
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                hovertext=[_hover(s) for s in spans],
                hoverinfo="text",
            ),
            row=row,
            col=1,
        )
        known.add(lane.name)


def _idle_waits(timeline: Timeline) -> Iterator[Span]:
    """The parts of waits in which the rank does nothing else."""
    for rank in range(timeline.layout.ranks):
        busy = merge((s.start_ns, s.end_ns) for s in timeline.of(rank, SpanKind.COMPUTE))
        for wait in timeline.of(rank, SpanKind.WAIT):
            for start, end in subtract(merge([(wait.start_ns, wait.end_ns)]), busy):
                if start >= timeline.start_ns:
                    yield wait._replace(start_ns=start, end_ns=end)


def _hover(span: Span) -> str:
    seconds = (span.end_ns - span.start_ns) / _NS
    return f"{span.kind} s{span.stage}/C{span.micro_batch}: {seconds:.4g} s"


def _curve(chart: Any, row: int, label: tuple[str, str], timeline: Timeline) -> None:
    import plotly.graph_objects as go

    seconds: dict[int, float] = {}
    for span in timeline.spans:
        if span.kind is SpanKind.COMPUTE:
            took = (span.end_ns - span.start_ns) / _NS
            seconds[span.micro_batch] = seconds.get(span.micro_batch, 0.0) + took
    tokens = {batch.index: batch.tokens for batch in timeline.micro_batches}
    index = sorted(seconds)
    name, colour = label
    chart.add_trace(
        go.Scatter(
            x=index,
            y=[seconds[i] for i in index],
            mode="lines+markers",
            name=name,
            line={"color": colour},
            hovertext=[f"C{i}: {tokens.get(i, 0)} tokens, {seconds[i]:.4g} s" for i in index],
            hoverinfo="text",
        ),
        row=row,
        col=1,
    )


def page(title: str, figures: Sequence[Any], sections: Sequence[str] = ()) -> str:
    """One HTML document that holds plotly itself; `sections` is HTML put before the figures."""
    parts = [
        chart.to_html(full_html=False, include_plotlyjs=position == 0)
        for position, chart in enumerate(figures)
    ]
    style = (
        "body{font-family:system-ui,sans-serif;max-width:1200px;margin:2rem auto;padding:0 1rem}"
        "table{border-collapse:collapse}td,th{padding:.25rem .75rem;text-align:right}"
        "th{border-bottom:1px solid #888}tr:nth-child(even){background:#f6f6f6}"
        "pre{background:#f6f6f6;padding:1rem;overflow:auto}"
    )
    return "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
            f"<style>{style}</style></head><body><h1>{escape(title)}</h1>",
            *sections,
            *parts,
            "</body></html>",
        ]
    )


def write(path: Path, text: str) -> None:
    """Write a whole file or none: to a neighbour first, then renamed."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
