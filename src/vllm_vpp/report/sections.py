"""The words and tables of a page, section by section, as HTML.

Owns what is said and in which order; every name that comes from a file is escaped here. Cells carry
the figure they show in full as `data-value`.
"""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from vllm_vpp.core.metrics import PARTS
from vllm_vpp.report.comparison import LABELS, Row, moved
from vllm_vpp.report.runs import ShownRun

__all__ = [
    "chunks",
    "comparison",
    "definitions",
    "first_tokens",
    "head",
    "origin",
    "parts",
    "timelines",
]

_SUM = "makespan"


def head(runs: Sequence[ShownRun]) -> str:
    """Title, one line per run, and links to the sections."""
    lines = [
        f"<li><strong>{escape(run.name)}</strong>: {escape(_summary(run))}</li>" for run in runs
    ]
    links = {
        "what-moved": "what moved" if len(runs) > 1 else "where the time went",
        "timelines": "timelines",
        "breakdown": "breakdown",
        "chunks": "chunk times",
        "first-token": "first token",
        "origin": "origin",
        "definitions": "definitions",
    }
    nav = "".join(f'<a href="#{target}">{text}</a>' for target, text in links.items())
    return f"<h1>vllm-vpp report</h1>\n<ul>{''.join(lines)}</ul>\n<nav>{nav}</nav>"


def _summary(run: ShownRun) -> str:
    metrics, layout = run.metrics, run.timeline.layout
    return (
        f"{run.timeline.source}, layout {layout.name} on {layout.ranks} ranks, {run.tokens:,}"
        f" tokens in {metrics.steps:,} steps, {metrics.makespan:.3f} s, bubble ratio"
        f" {metrics.bubble_ratio:.1%}, {metrics.distance_to_limit:.3f} of the limit W/P"
    )


def comparison(runs: Sequence[ShownRun], rows: Sequence[Mapping[str, Any]]) -> str:
    """Runs side by side, differences from the first in seconds, and a sentence for each."""
    names = [run.name for run in runs]
    heads = "".join(
        f'<th scope="col">{escape(name)}</th>' + ('<th scope="col">delta</th>' if i else "")
        for i, name in enumerate(names)
    )
    shown = [Row(**row) for row in rows]
    body = "\n".join(_comparison_row(row, len(names)) for row in shown)
    said = "".join(f"<p>{escape(moved(shown, names, i))}.</p>" for i in range(1, len(names)))
    title = "What moved" if len(runs) > 1 else "Where the time went"
    return (
        f'<h2 id="what-moved">{title}</h2>\n{said}<div class="wide" tabindex="0">'
        f'<table id="comparison"><caption>Mean over ranks, in seconds unless marked; differences'
        f" of shares are in points.</caption>"
        f'<thead><tr><th scope="col"></th>{heads}</tr></thead>\n<tbody>{body}</tbody></table></div>'
    )


def _comparison_row(row: Row, count: int) -> str:
    cells = [_cell(row.cell(0), row.values[0])]
    for i in range(1, count):
        cells += [_cell(row.cell(i), row.values[i]), f"<td>{escape(row.delta(i))}</td>"]
    kind = "sum" if row.label == _SUM else "inner" if row.label.startswith(" ") else ""
    label = escape(row.label.strip())
    return f'<tr class="{kind}"><th scope="row">{label}</th>{"".join(cells)}</tr>'


def _cell(text: str, value: float | None) -> str:
    return f'<td data-value="{"" if value is None else repr(value)}">{escape(text)}</td>'


def timelines(runs: Sequence[ShownRun]) -> str:
    """A place for each run's timeline, and the buttons that move all of them."""
    names = {"in": "zoom in", "out": "zoom out", "left": "earlier", "right": "later", "all": "all"}
    buttons = "".join(f'<button data-zoom="{k}">{text}</button>' for k, text in names.items())
    places = "\n".join(
        f"<h3>{escape(run.name)}</h3>\n"
        f'<div class="chart" id="timeline-{i}" tabindex="0" role="application"'
        f' aria-label="Timeline of {escape(run.name)}" aria-describedby="timeline-keys"></div>\n'
        f'<p class="detail" id="timeline-{i}-detail" role="status"></p>'
        for i, run in enumerate(runs)
    )
    return (
        '<h2 id="timelines">Timelines</h2>\n<p class="dim" id="timeline-keys">Drag to zoom, double'
        " click for all; numbers are micro-batches. Keys on a timeline: left and right go from"
        " action to action, up and down from rank to rank, + and - zoom, 0 shows all.</p>\n"
        f'{_legend(runs)}<div class="controls">{buttons}</div>\n{places}'
    )


def _legend(runs: Sequence[ShownRun]) -> str:
    """Colours as `theme.js` has them; filled in there."""
    sweeps = max(run.timeline.layout.sweeps for run in runs)
    marks = [(f"sweep:{i}", f"compute, sweep {i}") for i in range(sweeps)]
    marks += [("transfer", "transfer")]
    idle = (part for part in PARTS if part not in {"compute", "exposed"})
    marks += [(part, f"idle: {LABELS[part]}") for part in idle]
    items = "".join(f'<li><i data-colour="{key}"></i>{text}</li>' for key, text in marks)
    return f'<ul class="legend">{items}</ul>\n'


def parts(runs: Sequence[ShownRun]) -> str:
    """Bars, and the same numbers as a table, rank by rank."""
    names = [*PARTS, "makespan"]
    heads = "".join(f'<th scope="col">{LABELS.get(name, name)}</th>' for name in names)
    body = "\n".join(_parts_row(run, names) for run in runs)
    return (
        '<h2 id="breakdown">Breakdown</h2>\n<div class="chart" id="parts" role="img"'
        ' aria-label="Parts of the makespan of each rank; the table below has the numbers"></div>\n'
        '<div class="wide" tabindex="0"><table id="ranks"><caption>Seconds; the parts of a row sum'
        ' to its makespan.</caption><thead><tr><th scope="col">rank</th>'
        f"{heads}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def _parts_row(run: ShownRun, names: Sequence[str]) -> str:
    rows = []
    for rank in run.metrics.ranks:
        cells = "".join(_cell(f"{getattr(rank, n):.3f}", getattr(rank, n)) for n in names)
        rows.append(f'<tr><th scope="row">{escape(run.name)}, rank {rank.rank}</th>{cells}</tr>')
    return "\n".join(rows)


def chunks(data: Sequence[Mapping[str, Any]]) -> str:
    """Chunk times against their number, and what the test of linearity says."""
    said = "".join(f"<li>{escape(run['name'])}: {_law(run['chunk_times'])}</li>" for run in data)
    chart = ""
    if any(run["chunk_times"]["seconds"] for run in data):
        chart = (
            '<div class="chart" id="chunk-times" role="img" aria-label="Seconds of each chunk'
            ' against its number, with a line"></div>\n'
        )
    return (
        '<h2 id="chunks">Chunk times</h2>\n<p class="dim">The longest row of equal chunks of one'
        " prompt; compute summed over all stages. Line by least squares, band of 95%"
        f" confidence.</p>\n{chart}<ul>{said}</ul>"
    )


def _law(found: Mapping[str, Any]) -> str:
    line = found["line"]
    if line is None:
        return f"{len(found['seconds'])} equal chunks, too few for a line with a band"
    law = f"{line['intercept']:.4g} s {line['slope']:+.4g} s k, R² {line['r_squared']:.4f}"
    return escape(f"{law}; {found['verdict']}" if found["verdict"] else law)


def first_tokens(runs: Sequence[ShownRun]) -> str:
    """A box for each run, and what the times are."""
    words = "".join(
        f"<li>{escape(run.name)}: {_count(len(run.first_tokens))}, {escape(run.measured)}</li>"
        for run in runs
    )
    return (
        '<h2 id="first-token">Time to first token</h2>\n<div class="chart" id="first-tokens"'
        ' role="img" aria-label="Distribution of the time to first token of each run"></div>\n'
        f"<ul>{words}</ul>"
    )


def _count(requests: int) -> str:
    return "1 request" if requests == 1 else f"{requests} requests"


def origin(runs: Sequence[ShownRun], command: str) -> str:
    """Settings, hardware and versions of each run, and the commands that give them again."""
    blocks = "\n".join(f"<h3>{escape(run.name)}</h3>\n{_facts(run)}" for run in runs)
    return f'<h2 id="origin">Origin</h2>\n<p>This page:</p><pre>{escape(command)}</pre>\n{blocks}'


def _facts(run: ShownRun) -> str:
    facts = dict(run.settings) | dict(run.machine)
    if not run.machine:
        facts["hardware"] = "not recorded"
    size = "not recorded" if run.total_bytes is None else f"{run.total_bytes:,}"
    facts["bytes transferred"] = size
    rows = "".join(_fact(name, value) for name, value in facts.items())
    measured = f"<p>Measured by:</p><pre>{escape(run.command)}</pre>" if run.command else ""
    return f"<table>{rows}</table>{measured}"


def _fact(name: str, value: str) -> str:
    return f'<tr><th scope="row">{escape(name)}</th><td class="words">{escape(value)}</td></tr>'


def definitions() -> str:
    """What the words mean."""
    items = "".join(f"<tr>{cells}</tr>" for cells in _definitions())
    return f'<h2 id="definitions">Definitions</h2>\n<table>{items}</table>'


_WORDS = {
    "makespan": "from the first start of compute to the last end, over all ranks",
    "compute": "the rank's stages are at work",
    "exposed communication": "a transfer is under way and the rank computes nothing",
    "bubble": "neither; split into fill, drain, stall, host and starved",
    "fill, drain": "before the rank's first compute, after its last",
    "stall": "the input of the rank's next action is not there yet, and another rank is at work",
    "host (launch-blocked)": "the input is there and nothing runs, or no rank does anything",
    "starved": "no request is in the system",
    "overlap ratio": "share of transfer time during which the rank computes",
    "cross-request bubble": "bubble during the drain of one prompt and the fill of the next",
    "limit W/P": "compute of all ranks divided by their number",
}


def _definitions() -> Iterator[str]:
    for word, meaning in _WORDS.items():
        yield f'<th scope="row">{escape(word)}</th><td class="words">{escape(meaning)}</td>'
