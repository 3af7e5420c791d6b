"""The data that a page embeds: everything its tables and charts show, once.

Owns the form: columns instead of records for spans, whole nanoseconds from the first compute.
"""

from collections.abc import Sequence
from typing import Any

from vllm_vpp.core.occupancy import Idle, occupancy
from vllm_vpp.core.timeline import SpanKind
from vllm_vpp.report.comparison import compare_runs
from vllm_vpp.report.runs import ShownRun
from vllm_vpp.sim.line import line
from vllm_vpp.sim.linearity import chunk_times, linearity

__all__ = ["KINDS", "page_data"]

KINDS = (SpanKind.COMPUTE, SpanKind.SEND, SpanKind.RECV)
_BAND = 3  # chunks that a line with a band needs
_TEST = 5  # and that the test of linearity needs


def page_data(runs: Sequence[ShownRun], command: str) -> dict[str, Any]:
    """Plain data for JSON. Raises InputError for a run without compute."""
    rows = compare_runs([run.metrics for run in runs])
    return {
        "command": command,
        "kinds": [kind.value for kind in KINDS],
        "comparison": [row._asdict() for row in rows],
        "runs": [
            run.as_dict()
            | {
                "spans": _spans(run),
                "idle": _idle(run),
                "batches": _batches(run),
                "chunk_times": _chunk_times(run),
            }
            for run in runs
        ],
    }


def _spans(run: ShownRun) -> dict[str, list[int]]:
    origin = run.timeline.start_ns
    shown = [s for s in run.timeline.spans if s.kind in KINDS]
    return {
        "rank": [s.rank for s in shown],
        "kind": [KINDS.index(s.kind) for s in shown],
        "stage": [s.stage for s in shown],
        "batch": [s.micro_batch for s in shown],
        "start": [s.start_ns - origin for s in shown],
        "end": [s.end_ns - origin for s in shown],
    }


def _idle(run: ShownRun) -> dict[str, list[Any]]:
    origin = run.timeline.start_ns
    found: list[tuple[int, Idle, int, int]] = [
        (own.rank, reason, start - origin, end - origin)
        for own in occupancy(run.timeline, run.seen)
        for reason, parts in own.idle.items()
        for start, end in parts
    ]
    names = ("rank", "reason", "start", "end")
    return {name: [row[i] for row in found] for i, name in enumerate(names)}


def _batches(run: ShownRun) -> dict[int, list[list[Any]]]:
    computed = {span.micro_batch for span in run.timeline.spans}
    return {
        batch.index: [list(chunk) for chunk in batch.chunks]
        for batch in run.timeline.micro_batches
        if batch.index in computed
    }


def _chunk_times(run: ShownRun) -> dict[str, Any]:
    """Times of the longest row of equal chunks, with its line where there are enough."""
    tau = chunk_times(run.timeline)
    ranks = run.timeline.layout.ranks
    found = line(tau) if len(tau) >= _BAND else None
    return {
        "seconds": tau,
        "line": None
        if found is None
        else {
            "intercept": found.intercept,
            "slope": found.slope,
            "r_squared": found.r_squared,
            "low": found.low,
            "high": found.high,
        },
        "verdict": linearity(tau, ranks).verdict() if len(tau) >= _TEST else None,
    }
