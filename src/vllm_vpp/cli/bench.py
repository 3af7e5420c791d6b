"""`vllm-vpp bench SUITE`: the measurements behind the tables of the documentation."""

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vllm_vpp.errors import InputError

if TYPE_CHECKING:
    from vllm_vpp.bench.suite import Suite

__all__ = ["bench"]


def bench(
    suites: Annotated[
        list[str] | None, typer.Argument(help="Suites to run; all when left out.")
    ] = None,
    workload: Annotated[
        list[Path] | None,
        typer.Option(
            help="A trace of requests to measure as `mixed` does: one JSON object a line with"
            " timestamp, input_length, output_length. May be repeated."
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Runs of each arm; the suite's own when left out.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for one JSON file per suite.")] = Path(
        "results"
    ),
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure anew instead of adding missing rounds.")
    ] = False,
) -> None:
    """Measure suites on this machine, arms in turn, and keep everything raw.

    What a suite's file already holds is kept; only rounds that are missing are measured.
    """
    from rich.console import Console

    from vllm_vpp.bench.results import run_suite
    from vllm_vpp.cli.progress import Progress
    from vllm_vpp.report.figure import write

    if rounds is not None and rounds < 1:
        raise InputError(f"--rounds {rounds}: must be at least 1; choose such a number")
    chosen = _chosen(suites, workload or [])
    out.mkdir(parents=True, exist_ok=True)
    for suite in chosen:
        file = out / f"{suite.name}.json"
        before = None if fresh else _read(file)
        with Progress(Console(), suite.name) as tell:
            for result in run_suite(
                suite,
                rounds=rounds or suite.rounds,
                folder=Path("build") / "bench" / suite.name,
                command=shlex.join(["vllm-vpp", *sys.argv[1:]]),
                tell=tell,
                before=before,
            ):
                write(file, json.dumps(result, indent=1) + "\n")
                tell(f"kept in {file}")
        print(f"complete: {file}")


def _chosen(names: list[str] | None, traces: list[Path]) -> "list[Suite]":
    """Suites by name, and those of trace files; all by name where nothing is named."""
    from vllm_vpp.bench.mixed import suite_of_trace
    from vllm_vpp.bench.suites import SUITES

    wanted = names or ([] if traces else list(SUITES))
    for name in wanted:
        if name not in SUITES:
            raise InputError(
                f"suite {name!r}: must be one of {', '.join(SUITES)}; choose one of them"
            )
    return [*(SUITES[name] for name in wanted), *map(suite_of_trace, traces)]


def _read(file: Path) -> Any:
    """What an earlier run left; None if there is nothing. Raises InputError if it is no result."""
    if not file.exists():
        return None
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file}: is not JSON ({error}); measure anew with --fresh") from None
