"""`vllm-vpp report RUN...`: one page that shows recorded runs and needs nothing else."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from vllm_vpp.errors import InputError

__all__ = ["report"]


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Folders that trace_dir named, results files of `vllm-vpp bench`, or timelines."
        ),
    ],
    request: Annotated[
        int | None,
        typer.Option(help="Only while this request is in the pipeline: 0 the first, -1 the last."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Page to write.")] = Path("report.html"),
) -> None:
    """Write a page with timelines, chunk times, breakdowns and a comparison of runs."""
    from vllm_vpp.report.figure import write
    from vllm_vpp.report.inputs import read_inputs
    from vllm_vpp.report.page import page_of

    if not out.parent.is_dir():
        raise InputError(f"--out {out}: no such folder; create {out.parent} first")
    given = read_inputs(runs, request)
    if not given.runs:
        raise InputError(
            f"{runs[0]}: a profiler's trace has no chunks to show; give recorded runs, and see"
            " profiles with `vllm-vpp analyze`"
        )
    write(out, page_of(given.runs, command=shlex.join(["vllm-vpp", *sys.argv[1:]])))
    print(f"written: {out}")
