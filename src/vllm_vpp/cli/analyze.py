"""`vllm-vpp analyze RUN...`: where the time of recorded runs and of profiler traces went."""

import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vllm_vpp.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from vllm_vpp.profiles.breakdown import Profile
    from vllm_vpp.report.comparison import Row
    from vllm_vpp.report.runs import ShownRun

__all__ = ["analyze"]

_RUN_WORDS = (
    "compute, exposed (transfers while the rank computes nothing), fill, drain, stall (the next"
    " input is still being computed), host (launch-blocked: the input is there, or no rank does"
    " anything) and starved (no request in the system) sum to the makespan on every rank."
)
_PROFILE_WORDS = (
    "compute, exposed (communication while the rank computes nothing), exposed copies and idle sum"
    " to the makespan on every rank. Groups: sums of durations, side by side or not."
)


def analyze(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Folders that trace_dir named, results files, timelines; or traces of"
            " torch.profiler from any vLLM, one file per rank."
        ),
    ],
    request: Annotated[
        int | None,
        typer.Option(help="Only while this request is in the pipeline: 0 the first, -1 the last."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write a Chrome trace of the one run, for Perfetto.")
    ] = None,
) -> None:
    """Break the time of each rank down; with two runs, say what moved."""
    from vllm_vpp.report.comparison import compare_profiles, compare_runs
    from vllm_vpp.report.inputs import read_inputs

    if trace is not None and not trace.parent.is_dir():
        raise InputError(f"--trace {trace}: no such folder; create {trace.parent} first")
    given = read_inputs(runs, request)
    if trace is not None:
        _write_trace(given.runs, trace)
    if given.runs:
        names = [run.name for run in given.runs]
        rows = compare_runs([run.metrics for run in given.runs])
    else:
        names = [profile.name for profile in given.profiles]
        rows = compare_profiles(given.profiles)
    if as_json:
        print(json.dumps(_as_data(given.runs, given.profiles, names, rows), indent=1))
    else:
        _print(given.runs, given.profiles, names, rows)


def _write_trace(runs: "tuple[ShownRun, ...]", trace: Path) -> None:
    from vllm_vpp.report.chrome import chrome_trace
    from vllm_vpp.report.figure import write

    if len(runs) != 1:
        raise InputError(
            f"--trace with {len(runs)} runs: must be exactly one; give one run, and a profiler's"
            " traces to Perfetto as they are"
        )
    write(trace, chrome_trace(runs[0].timeline))


def _as_data(
    runs: "tuple[ShownRun, ...]",
    profiles: "tuple[Profile, ...]",
    names: list[str],
    rows: "list[Row]",
) -> dict[str, Any]:
    compared = [
        {"what": row.label.strip(), "unit": row.unit, "is_part": row.is_part, "values": row.values}
        for row in rows
    ]
    return {
        "runs": [run.as_dict() for run in runs],
        "profiles": [profile.as_dict() for profile in profiles],
        "comparison": {"names": names, "rows": compared} if len(names) > 1 else None,
    }


def _print(
    runs: "tuple[ShownRun, ...]",
    profiles: "tuple[Profile, ...]",
    names: list[str],
    rows: "list[Row]",
) -> None:
    from rich.console import Console

    from vllm_vpp.report.comparison import moved
    from vllm_vpp.report.tables import comparison_table

    console = Console(highlight=False)
    for run in runs:
        _print_run(console, run)
    for profile in profiles:
        _print_profile(console, profile)
    if len(names) > 1:
        console.print(comparison_table(names, rows))
        for position in range(1, len(names)):
            console.print(f"{moved(rows, names, position)}.", markup=False, soft_wrap=True)
    console.print(_RUN_WORDS if runs else _PROFILE_WORDS, style="dim")


def _print_run(console: "Console", run: "ShownRun") -> None:
    from vllm_vpp.report.tables import run_table

    metrics, layout = run.metrics, run.timeline.layout
    console.print(run_table(f"{run.name}: {layout.name}, {run.timeline.source}", metrics))
    overlap = metrics.overlap_ratio
    size = "bytes not recorded" if run.total_bytes is None else f"{run.total_bytes:,} bytes"
    facts = [
        f"{metrics.steps:,} steps of {run.tokens:,} tokens; {metrics.transfers:,} transfers, {size}"
    ]
    if overlap is not None:
        facts.append(
            f"communication: {metrics.mean('exposed'):.3f} s exposed, "
            f"{metrics.mean('overlapped'):.3f} s overlapped (mean of ranks); overlap ratio"
            f" {overlap:.1%}"
        )
    facts.append(
        f"bubble ratio {metrics.bubble_ratio:.1%}; cross-request bubble "
        f"{metrics.mean('cross_request'):.3f} s; {metrics.distance_to_limit:.3f} of the limit W/P"
    )
    if run.first_tokens:
        times = run.first_tokens
        many = "1 request" if len(times) == 1 else f"{len(times)} requests"
        facts.append(
            f"{many}, {run.measured}: median {statistics.median(times):.3f} s, "
            f"{min(times):.3f} to {max(times):.3f} s"
        )
    if run.machine:
        facts.append(", ".join(f"{name} {value}" for name, value in run.machine.items()))
    console.print("\n".join(facts) + "\n", markup=False, soft_wrap=True)


def _print_profile(console: "Console", profile: "Profile") -> None:
    from vllm_vpp.report.tables import groups_table, profile_table

    console.print(profile_table(profile), groups_table(profile))
    for rank in profile.ranks:
        if rank.overlap_ratio is not None:
            console.print(
                f"rank {rank.rank}: communication {rank.transfer:.3f} s, overlap ratio "
                f"{rank.overlap_ratio:.1%}"
            )
    if not all(rank.on_device for rank in profile.ranks):
        console.print("No device in some file: times of the host's operators are shown.")
    if not profile.one_window:
        console.print("The files have no time in common: each rank's makespan is its own.")
