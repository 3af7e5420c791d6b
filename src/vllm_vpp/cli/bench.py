"""`vllm-vpp bench SUITE`: the measurements behind the tables of the documentation."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

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
) -> None:
    """Measure suites on this machine, arms in turn, and keep everything raw."""
    from rich.console import Console

    from vllm_vpp.bench.suites import SUITES, run_suite
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
        with Progress(Console(), name) as tell:
            result = run_suite(
                SUITES[name],
                rounds=rounds,
                folder=Path("build") / "bench" / name,
                command=shlex.join(["vllm-vpp", *sys.argv[1:]]),
                tell=tell,
            )
        write(out / f"{name}.json", json.dumps(result, indent=1) + "\n")
        print(f"written: {out / f'{name}.json'}")
