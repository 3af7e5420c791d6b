"""One page that shows recorded runs and opens without a network.

Owns the page's frame: plotly once, style, data and scripts in one file (`assets`), and the order of
sections. Words and tables are written in `sections`; charts are drawn in the browser from the data
that `page_data` embeds.
"""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

from vllm_vpp.report import sections
from vllm_vpp.report.page_data import page_data
from vllm_vpp.report.runs import ShownRun

__all__ = ["page_of"]

_ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = ("theme.js", "timeline.js", "charts.js")


def page_of(runs: Sequence[ShownRun], *, command: str) -> str:
    """The whole document. `command`: what writes it again. Raises InputError for an empty run."""
    from plotly.offline import get_plotlyjs

    data = page_data(runs, command)
    title = "vllm-vpp report: " + ", ".join(run.name for run in runs)
    scripts = "\n".join(f"<script>{_asset(name)}</script>" for name in _SCRIPTS)
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>\n<style>{_asset('page.css')}</style>\n</head>\n<body>",
            "<main>",
            sections.head(runs),
            sections.comparison(runs, data["comparison"]),
            sections.timelines(runs),
            sections.parts(runs),
            sections.chunks(data["runs"]),
            sections.first_tokens(runs),
            sections.origin(runs, command),
            sections.definitions(),
            "</main>",
            f'<script type="application/json" id="data">{_embedded(data)}</script>',
            f"<script>{get_plotlyjs()}</script>",
            scripts,
            "</body>\n</html>\n",
        ]
    )


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _embedded(data: object) -> str:
    """JSON that cannot end its script element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")
