"""Chrome traces keep Perfetto's rules; pages need nothing from outside."""

import itertools
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from vllm_vpp.core.chunking import make_policy
from vllm_vpp.core.cost import QuadraticCost, StageCost
from vllm_vpp.core.layout import Layout
from vllm_vpp.core.timeline import SpanKind, Timeline
from vllm_vpp.report.chrome import chrome_trace
from vllm_vpp.report.curves import curves
from vllm_vpp.report.figure import figure, page, write
from vllm_vpp.sim import Links, Setup, at_once, simulate


@pytest.fixture(params=[(2, 1), (2, 2), (3, 3)], ids=["linear", "v", "wave"])
def timeline(request: pytest.FixtureRequest) -> Timeline:
    layout = Layout(*request.param)
    law = QuadraticCost(c0=0.01, b=1e-5, a=1e-10)
    setup = Setup(
        layout=layout,
        cost=StageCost.by_layers(law, [1] * layout.stages),
        policy=make_policy({"policy": "fixed", "chunk": 4096}, law=None, ranks=layout.ranks),
        links=Links(latency=0.03),  # longer than some stages, so that transfers overlap
    )
    return simulate(at_once([40_000, 9_000]), setup).timeline()


def events(timeline: Timeline, phase: str) -> list[dict[str, Any]]:
    return [e for e in json.loads(chrome_trace(timeline))["traceEvents"] if e["ph"] == phase]


def test_slices_of_a_lane_do_not_overlap(timeline: Timeline) -> None:
    lanes: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in events(timeline, "X"):
        lanes[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in lanes.values():
        slices.sort()
        assert all(a[1] <= b[0] + 1e-6 for a, b in itertools.pairwise(slices))


def test_every_span_is_one_slice_and_every_lane_has_one_name(timeline: Timeline) -> None:
    slices = events(timeline, "X")
    assert len(slices) == len(timeline.spans)
    named = [(e["pid"], e["tid"]) for e in events(timeline, "M") if e["name"] == "thread_name"]
    assert sorted(named) == sorted({(e["pid"], e["tid"]) for e in slices})
    assert {e["pid"] for e in slices} == set(range(timeline.layout.ranks))


def test_every_send_has_one_arrow_that_ends_inside_its_receive(timeline: Timeline) -> None:
    slices = {(e["cat"], e["name"]): e for e in events(timeline, "X")}
    starts, ends = events(timeline, "s"), events(timeline, "f")
    assert sorted(e["id"] for e in starts) == sorted(e["id"] for e in ends)
    assert len(starts) == sum(s.kind is SpanKind.SEND for s in timeline.spans)
    for end in ends:
        receive = slices["recv", end["id"]]
        assert end["bp"] == "e"
        assert (end["pid"], end["tid"]) == (receive["pid"], receive["tid"])
        assert receive["ts"] <= end["ts"] <= receive["ts"] + receive["dur"]


def test_figure_has_a_bar_per_span_and_a_curve_per_timeline(timeline: Timeline) -> None:
    chart = figure({"one": timeline, "two": timeline})
    bars = sum(len(trace.x) for trace in chart.data if trace.type == "bar")
    assert bars == 2 * len(timeline.spans)
    curves = [trace for trace in chart.data if trace.type == "scatter"]
    assert [trace.name for trace in curves] == ["one", "two"]
    total = sum(s.end_ns - s.start_ns for s in timeline.spans if s.kind is SpanKind.COMPUTE)
    assert sum(curves[0].y) == pytest.approx(total / 1e9)


def test_page_is_self_contained_and_written_whole(timeline: Timeline, tmp_path: Path) -> None:
    html = page("A < B", [figure({"x": timeline})], ["<p>words</p>"])
    assert "A &lt; B" in html
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", html)
    write(tmp_path / "page.html", html)
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == html
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_curves_are_one_picture_with_every_chunk_and_its_line() -> None:
    tau = {"straight <a>": [0.1, 0.2, 0.3, 0.4], "bent": [0.1, 0.2, 0.25, 0.26, 0.26]}
    text = curves(tau)
    root = ET.fromstring(text)
    assert root.tag.endswith("svg")
    assert "straight &lt;a&gt;" in text
    assert not re.search(r"nan|inf", text)
    panels = list(root)
    for panel, seconds in zip(panels, tau.values(), strict=True):
        dots = [e for e in panel if e.tag.endswith("circle")]
        assert len(dots) == len(seconds)
        heights = [float(dot.attrib["cy"]) for dot in dots]
        assert heights == sorted(heights, reverse=True)
    (drawn,) = (e for e in panels[0] if e.tag.endswith("polyline"))
    first, last = (tuple(map(float, p.split(","))) for p in drawn.attrib["points"].split())
    dots = [e for e in panels[0] if e.tag.endswith("circle")]
    assert first == (float(dots[0].attrib["cx"]), float(dots[0].attrib["cy"]))
    assert last == (float(dots[-1].attrib["cx"]), float(dots[-1].attrib["cy"]))
