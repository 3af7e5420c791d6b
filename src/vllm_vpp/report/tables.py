"""Breakdowns as tables for a terminal.

Owns their look only: the numbers come from `core.metrics` and `profiles`. Two lines per rank,
seconds and share of the makespan, so that any number of ranks fits 80 columns.
"""

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from vllm_vpp.core import metrics as core
from vllm_vpp.profiles import breakdown
from vllm_vpp.profiles.operators import OperatorGroup
from vllm_vpp.report.comparison import Row

__all__ = ["comparison_table", "groups_table", "profile_table", "run_table"]


def run_table(title: str, metrics: core.Metrics) -> Table:
    """Parts of each rank's makespan."""
    return _parts_table(title, core.PARTS, metrics.ranks)


def profile_table(profile: breakdown.Profile) -> Table:
    """Parts of each rank's window, from profiler traces."""
    return _parts_table(profile.name, breakdown.PARTS, profile.ranks)


def _parts_table(
    title: str,
    parts: Sequence[str],
    ranks: Sequence[core.RankMetrics] | Sequence[breakdown.ProfiledRank],
) -> Table:
    table = Table(title=escape(title))
    table.add_column("rank", justify="right")
    for part in (*parts, "makespan"):
        table.add_column(part, justify="right")
    for rank in ranks:
        seconds = [getattr(rank, part) for part in parts]
        table.add_row(str(rank.rank), *(f"{s:.3f} s" for s in (*seconds, rank.makespan)))
        shares = (f"{s / rank.makespan:.1%}" for s in seconds)
        table.add_row("", *shares, "", style="dim", end_section=True)
    return table


def groups_table(profile: breakdown.Profile) -> Table:
    """Seconds and number of operators of each group, by rank; shares of the rank's sum."""
    table = Table(title=escape(f"{profile.name}: operator groups"))
    table.add_column("group")
    for rank in profile.ranks:
        table.add_column(f"rank {rank.rank}", justify="right")
        table.add_column("calls", justify="right")
    sums = [sum(time.seconds for time in rank.groups.values()) for rank in profile.ranks]
    for group in OperatorGroup:
        cells = []
        for rank, whole in zip(profile.ranks, sums, strict=True):
            seconds, calls = rank.groups[group]
            cells += [f"{seconds:.3f} s  {seconds / whole:5.1%}", f"{calls:,}"]
        table.add_row(group.value, *cells)
    return table


def comparison_table(names: Sequence[str], rows: Sequence[Row]) -> Table:
    """Runs side by side, and what each differs from the first by."""
    table = Table(title="What moved: mean over ranks, seconds unless marked")
    table.add_column("")
    table.add_column(escape(names[0]), justify="right")
    for name in names[1:]:
        table.add_column(escape(name), justify="right")
        table.add_column("delta", justify="right")
    for row in rows:
        cells = [row.cell(0)]
        for position in range(1, len(names)):
            cells += [row.cell(position), row.delta(position)]
        table.add_row(row.label, *cells, end_section=row.label == "makespan")
    return table
