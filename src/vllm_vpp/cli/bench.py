"""`vllm-vpp bench SUITE`: the measurements behind the tables of the documentation."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from vllm_vpp.errors import InputError

__all__ = ["bench"]


def bench(
    suites: Annotated[
        list[str] | None, typer.Argument(help="Suites to run; all when left out.")
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
    from vllm_vpp.bench.suites import SUITES
    from vllm_vpp.cli.progress import Progress
    from vllm_vpp.report.figure import write

    chosen = suites or list(SUITES)
    for name in chosen:
        if name not in SUITES:
            raise InputError(
                f"suite {name!r}: must be one of {', '.join(SUITES)}; choose one of them"
            )
    if rounds is not None and rounds < 1:
        raise InputError(f"--rounds {rounds}: must be at least 1; choose such a number")
    out.mkdir(parents=True, exist_ok=True)
    for name in chosen:
        file = out / f"{name}.json"
        before = None if fresh else _read(file)
        with Progress(Console(), name) as tell:
            for result in run_suite(
                SUITES[name],
                rounds=rounds or SUITES[name].rounds,
                folder=Path("build") / "bench" / name,
                command=shlex.join(["vllm-vpp", *sys.argv[1:]]),
                tell=tell,
                before=before,
            ):
                write(file, json.dumps(result, indent=1) + "\n")
                tell(f"kept in {file}")
        print(f"complete: {file}")


def _read(file: Path) -> Any:
    """What an earlier run left; None if there is nothing. Raises InputError if it is no result."""
    if not file.exists():
        return None
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file}: is not JSON ({error}); measure anew with --fresh") from None
