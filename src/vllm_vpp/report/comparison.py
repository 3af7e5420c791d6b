"""Runs side by side, as the paper's table of one long prompt has them: what moved, in seconds.

Owns the rows and their order. Every figure is a mean over ranks. Of the rows marked as parts, the
differences of two runs sum to the difference of their makespans.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vllm_vpp.core.metrics import Metrics
from vllm_vpp.profiles.breakdown import Profile
from vllm_vpp.profiles.operators import OperatorGroup

__all__ = ["LABELS", "Row", "compare_profiles", "compare_runs", "moved"]

LABELS = {
    "compute": "compute",
    "exposed": "exposed communication",
    "fill": "fill",
    "drain": "drain",
    "stall": "stall",
    "host": "host (launch-blocked)",
    "starved": "starved",
    "copies": "exposed copies",
    "idle": "idle",
}
"""What tables and pictures call a part of the makespan."""

_SECONDS, _COUNT, _SHARE = "s", "", "%"


class Row(NamedTuple):
    """One line: `values` in the order of the runs, None where a run has no such figure.

    `unit`: "s", "%" (the value is a share) or "" (a count). `is_part`: of the makespan.
    """

    label: str
    unit: str
    values: tuple[float | None, ...]
    is_part: bool = False

    def cell(self, position: int) -> str:
        """The value as text."""
        return _text(self.values[position], self.unit)

    def delta(self, position: int) -> str:
        """The difference from the first run as text; shares differ in points."""
        value, first = self.values[position], self.values[0]
        if value is None or first is None:
            return "-"
        return _text(value - first, self.unit, sign="+")


def _text(value: float | None, unit: str, sign: str = "") -> str:
    if value is None:
        return "-"
    if unit == _SHARE:
        return f"{value * 100:{sign}.2f}" + ("" if sign else "%")
    return f"{value:{sign}.3f}" if unit == _SECONDS else f"{value:{sign},.0f}"


def compare_runs(metrics: Sequence[Metrics]) -> list[Row]:
    """Rows for runs of this plugin, simulated or measured."""

    def seconds(label: str, field: str, *, is_part: bool = True) -> Row:
        return Row(label, _SECONDS, tuple(m.mean(field) for m in metrics), is_part)

    return [
        seconds(LABELS["compute"], "compute"),
        seconds("bubble", "bubble", is_part=False),
        *(
            seconds(f"  {LABELS[name]}", name)
            for name in ("fill", "drain", "stall", "host", "starved")
        ),
        seconds(LABELS["exposed"], "exposed"),
        Row("makespan", _SECONDS, tuple(m.makespan for m in metrics)),
        seconds("overlapped communication", "overlapped", is_part=False),
        seconds("cross-request bubble", "cross_request", is_part=False),
        Row("bubble ratio", _SHARE, tuple(m.bubble_ratio for m in metrics)),
        Row("overlap ratio", _SHARE, tuple(m.overlap_ratio for m in metrics)),
        Row("steps", _COUNT, tuple(m.steps for m in metrics)),
        Row("transfers", _COUNT, tuple(m.transfers for m in metrics)),
    ]


def compare_profiles(profiles: Sequence[Profile]) -> list[Row]:
    """Rows for profiles of any vLLM."""

    def seconds(label: str, field: str, *, is_part: bool = True) -> Row:
        return Row(label, _SECONDS, tuple(p.mean(field) for p in profiles), is_part)

    return [
        *(seconds(LABELS[name], name) for name in ("compute", "exposed", "copies", "idle")),
        seconds("makespan", "makespan", is_part=False),
        seconds("overlapped communication", "overlapped", is_part=False),
        *(
            Row(f"  {group}", _SECONDS, tuple(p.mean_of(group) for p in profiles))
            for group in OperatorGroup
        ),
    ]


def moved(rows: Sequence[Row], names: Sequence[str], position: int) -> str:
    """One sentence: how much longer or shorter a run is than the first, and by which parts."""
    deltas: Mapping[str, float] = {
        row.label.strip(): (row.values[position] or 0.0) - (row.values[0] or 0.0)
        for row in rows
        if row.is_part
    }
    total = sum(deltas.values())
    largest = sorted(deltas.items(), key=lambda item: (-abs(item[1]), item[0]))
    parts = [f"{label} {delta:+.3f} s" for label, delta in largest if abs(delta) >= 0.0005]
    than = f"{names[position]} is {abs(total):.3f} s {'shorter' if total < 0 else 'longer'} than"
    return f"{than} {names[0]}: {', '.join(parts) or 'nothing moved'}"
