"""`vllm-vpp calibrate`: a cost model from recorded runs, or from layers timed here."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vllm_vpp.cli import given
from vllm_vpp.errors import InputError

if TYPE_CHECKING:
    from vllm_vpp.core.timeline import Timeline
    from vllm_vpp.sim.fitted import FittedCost, Measured
    from vllm_vpp.sim.overheads import Overheads
    from vllm_vpp.sim.table import TableCost

__all__ = ["calibrate"]


def calibrate(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Recorded runs: folders that vpp's trace_dir named."),
    ] = None,
    *,
    model: given.ModelName = None,
    device: Annotated[str, typer.Option(help="cpu or cuda, to time layers of --model.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32.")] = "bfloat16",
    threads: Annotated[int | None, typer.Option(help="CPU threads of a rank.")] = None,
    chunks: Annotated[str, typer.Option(help="Chunk sizes to time.")] = "256,1K,4K",
    prefixes: Annotated[str, typer.Option(help="Prefix lengths to time.")] = "0,4K,16K",
    check: Annotated[
        list[Path] | None,
        typer.Option(help="Recorded runs to predict with the result; may be repeated."),
    ] = None,
    gamma: Annotated[bool, typer.Option(help="Fit a cost per prefix token too (MLA).")] = False,
    out: Annotated[Path, typer.Option(help="Cost file to write.")] = Path("cost.json"),
) -> None:
    """Fit a cost model to recorded runs, or time a model's layers on this machine."""
    from vllm_vpp.report.figure import write
    from vllm_vpp.sim.cost_file import write_cost
    from vllm_vpp.sim.fitted import fit
    from vllm_vpp.sim.overheads import NONE, measure_overheads

    if not out.parent.is_dir():
        raise InputError(f"--out {out}: no such folder; create {out.parent} first")
    if bool(runs) == (model is not None):
        raise InputError("say what to calibrate from: give either recorded runs or --model")
    if runs:
        measured = [_read(path) for path in runs]
        fitted = fit(measured, gamma=gamma)
        overheads = measure_overheads([m.timeline for m in measured])
        write(out, write_cost(fitted, overheads))
        _print_fit(fitted)
        print(
            f"gap {overheads.gap * 1e6:.0f} us before an action; a transfer"
            f" {overheads.latency * 1e6:.0f} us + {overheads.per_token * 1e6:.3g} us per token"
        )
        _print_linearity([m.timeline for m in measured])
        _print_checks(check or [], fitted, overheads)
    else:
        assert model is not None
        grid = (given.sizes(chunks), _prefixes(prefixes))
        table = _time(model, (device, dtype, threads), grid)
        write(out, write_cost(table, NONE))
        print(f"head {table.head * 1e3:.3g} ms per micro-batch")
    print(f"written: {out}")


def _prefixes(text: str) -> list[int]:
    return sorted({0 if part.strip() == "0" else given.sizes(part)[0] for part in text.split(",")})


def _read(path: Path) -> "Measured":
    """A recorder's folder, or a timeline's JSON with the layers of its stages in its notes."""
    import json

    from vllm_vpp.core.timeline import Timeline
    from vllm_vpp.core.trace import read_run
    from vllm_vpp.sim.fitted import Measured

    if path.is_dir():
        run = read_run(path)
        return Measured(run.timeline, run.layers)
    try:
        timeline = Timeline.from_json(path.read_text(encoding="utf-8"))
        layers = json.loads(timeline.notes.get("layers", "").replace("(", "[").replace(")", "]"))
        return Measured(timeline, tuple(int(n) for n in layers))
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); give a folder of a recorded run"
        ) from None
    except (TypeError, json.JSONDecodeError):
        raise InputError(
            f"{path}: does not say how many layers its stages hold; give the recorder's folder"
        ) from None


def _time(
    model: str, where: tuple[str, str, int | None], grid: tuple[list[int], list[int]]
) -> "TableCost":
    from rich.console import Console

    from vllm_vpp.bench.layer_timing import Bench, time_layers
    from vllm_vpp.cli.progress import Progress
    from vllm_vpp.sim.model import read_model

    shape = read_model(model)
    device, dtype, threads = where
    if threads is not None and threads < 1:
        raise InputError(f"--threads {threads}: must be at least 1")
    bench = Bench(device=device, dtype=dtype, threads=threads)
    kinds = len(set(shape.layers))
    chunks = sorted(set(grid[0]))
    with Progress(Console(stderr=True), "timing layers", kinds * len(chunks)) as tell:
        return time_layers(shape, bench, chunks, grid[1], tell)


def _print_fit(cost: "FittedCost") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"R^2 {cost.r_squared:.5f} over {cost.spans} spans, {cost.left_out} left out"
    )
    for name in ("coefficient", "seconds", "standard error"):
        table.add_column(name, justify="left" if name == "coefficient" else "right")
    for name, (value, error) in cost.coefficients.items():
        table.add_row(name, f"{value:.4g}", "not fitted" if error is None else f"{error:.2g}")
    Console().print(table)


def _print_checks(paths: Sequence[Path], cost: "FittedCost", overheads: "Overheads") -> None:
    """Predictions of other recorded runs, next to what was measured."""
    if not paths:
        return
    from rich.console import Console
    from rich.table import Table

    from vllm_vpp.core.trace import read_run
    from vllm_vpp.sim.reality import predict

    table = Table(title="Prompts alone in the pipeline: predicted and measured, seconds")
    for name in (
        "run",
        "layout",
        "chunks",
        "measured",
        "predicted",
        "error",
        "bubble",
        "predicted",
    ):
        table.add_column(name, justify="left" if name in {"run", "layout"} else "right")
    errors = []
    for path in paths:
        run = read_run(path)
        for p in predict(run, cost, overheads):
            errors.append(abs(p.error))
            bubbles = (f"{p.measured_bubble:.1%}", f"{p.predicted_bubble:.1%}")
            seconds = (f"{p.measured:.4g}", f"{p.predicted:.4g}", f"{p.error:+.1%}")
            layout = f"{run.timeline.layout.name} x{run.timeline.layout.ranks}"
            table.add_row(path.name, layout, str(p.chunks), *seconds, *bubbles)
    Console().print(table)
    if errors:
        print(f"mean absolute error {sum(errors) / len(errors):.1%}, worst {max(errors):.1%}")


def _print_linearity(timelines: Sequence["Timeline"]) -> None:
    """Of the run with the most equal chunks, whether their times grow linearly."""
    from vllm_vpp.sim.linearity import chunk_times, linearity

    best = max(timelines, key=lambda t: len(chunk_times(t)))
    times = chunk_times(best)
    if len(times) >= 5:
        print(linearity(times, best.layout.ranks).verdict())
