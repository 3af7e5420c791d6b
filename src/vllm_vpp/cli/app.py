"""The command line's root: subcommands, and how an expected error looks (one line, exit code 2).

Subcommand modules import heavy libraries inside their functions, so that `--help` is instant.
"""

import sys
from typing import Any

import typer
from typer.core import TyperGroup

from vllm_vpp import __version__
from vllm_vpp.cli import analyze, bench, calibrate, demo, plan, report, simulate
from vllm_vpp.errors import VPPError

__all__ = ["app"]


class _Commands(TyperGroup):
    """Turns an error that the package raises on purpose into one line on standard error."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except VPPError as error:
            print(f"vllm-vpp: {error}", file=sys.stderr)
            raise SystemExit(2) from None


app = typer.Typer(
    name="vllm-vpp",
    help="Prefill of long prompts on a V-shaped pipeline of virtual stages, inside stock vLLM.",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        print(f"vllm-vpp {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Options of the command itself."""


app.command("demo")(demo.demo)
app.command("bench")(bench.bench)
app.command("analyze")(analyze.analyze)
app.command("report")(report.report)
app.command("plan")(plan.plan)
app.command("calibrate")(calibrate.calibrate)
app.command("simulate")(simulate.simulate)
