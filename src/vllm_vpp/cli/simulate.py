"""`vllm-vpp simulate`: one configuration, its metrics and its picture."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vllm_vpp.cli import given
from vllm_vpp.errors import InputError

if TYPE_CHECKING:
    from vllm_vpp.core.metrics import Metrics
    from vllm_vpp.core.timeline import Timeline
    from vllm_vpp.sim.simulate import Run, Setup

__all__ = ["simulate"]


def simulate(
    *,
    model: given.ModelName = None,
    hardware: given.HardwareName = None,
    cost: given.Cost = None,
    ranks: given.Ranks = 2,
    tensor_parallel: given.TensorParallel = 1,
    layout: Annotated[str, typer.Option(help="linear, v or wave.")] = "v",
    sweeps: Annotated[int | None, typer.Option(help="Sweeps of a wave.")] = None,
    order: Annotated[str, typer.Option(help="greedy, async or vanilla.")] = "greedy",
    chunking: Annotated[
        str,
        typer.Option(help='Tokens of a fixed chunk, or a policy such as {"policy": "ramp", ...}.'),
    ] = "8K",
    layers: Annotated[
        str | None,
        typer.Option(help="Layers of each stage, such as 8,7,8,7; balanced if left out."),
    ] = None,
    prompts: Annotated[
        str, typer.Option(help="Prompts that arrive at once, such as 64K,64K.")
    ] = "64K",
    output: Annotated[int, typer.Option(help="Tokens to generate for each prompt.")] = 1,
    workload: Annotated[Path | None, typer.Option(help="A trace instead of --prompts.")] = None,
    across_nodes: given.AcrossNodes = None,
    dispatch: given.Dispatch = None,
    depth: given.Depth = None,
    max_chunk: given.MaxChunk = None,
    block: given.Block = None,
    weight_bytes: given.WeightBytes = None,
    blocking: Annotated[bool, typer.Option(help="A rank computes nothing while it sends.")] = False,
    width: Annotated[int, typer.Option(help="Columns of the text timeline.")] = 120,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with the timeline.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a Chrome trace for Perfetto.")] = None,
    timeline: Annotated[Path | None, typer.Option(help="Write the timeline as JSON.")] = None,
) -> None:
    """Simulate one configuration: table of metrics, text timeline, JSON, page or trace."""
    from vllm_vpp.core.layout import Layout
    from vllm_vpp.core.metrics import measure
    from vllm_vpp.sim import at_once, read_trace
    from vllm_vpp.sim import simulate as run_requests

    for path in (html, trace, timeline):
        if path is not None and not path.parent.is_dir():
            raise InputError(f"{path}: no such folder; create {path.parent} first")
    problem = given.given_problem(
        (model, hardware, cost),
        ranks=ranks,
        ways=tensor_parallel,
        across_nodes=across_nodes,
        dispatch=dispatch,
        depth=depth,
        max_chunk=max_chunk,
        block=block,
        weight_bytes=weight_bytes,
    )
    requests = (
        read_trace(workload)
        if workload is not None
        else at_once(given.sizes(prompts), output=output)
    )
    longest = max(request.prompt for request in requests)
    setup = _setup(
        problem, Layout.of(layout, ranks, sweeps), (order, chunking, layers), longest, blocking
    )
    run = run_requests(requests, setup)
    spans = run.timeline()
    metrics = measure(spans)
    _write_files(spans, html=html, trace=trace, timeline=timeline)
    if as_json:
        print(json.dumps(_as_data(run, metrics), indent=1))
        return
    _print(run, spans, metrics, width)


def _setup(
    problem: Any, layout: Any, names: tuple[str, str, str | None], longest: int, blocking: bool
) -> "Setup":
    from dataclasses import replace

    from vllm_vpp.sim.options import pipeline_of, split_for

    order, chunking, layers = names
    split = (
        split_for(problem, layout, longest) if layers is None else _layers(layers, problem, layout)
    )
    setup = pipeline_of(problem, layout, split, longest).setup(_policy(chunking))
    return replace(setup, order=order, links=replace(setup.links, blocking=blocking))


def _layers(text: str, problem: Any, layout: Any) -> tuple[int, ...]:
    parts = text.split(",")
    split = tuple(int(part) for part in parts if part.strip().isdigit())
    good = len(split) == len(parts) == layout.stages and min(split) >= 1
    if not good or sum(split) != problem.layers:
        raise InputError(
            f"--layers {text}: must be {layout.stages} whole numbers of at least 1 that sum to"
            f" {problem.layers}"
        )
    return split


def _policy(text: str) -> dict[str, Any]:
    from vllm_vpp.sim.problem import parse_size

    if not text.lstrip().startswith("{"):
        return {"policy": "fixed", "chunk": parse_size(text)}
    try:
        spec = json.loads(text)
    except ValueError as error:
        raise InputError(
            f"--chunking {text}: not JSON ({error}); write a size such as 8K, or an object"
        ) from None
    return dict(spec)


def _as_data(run: "Run", metrics: "Metrics") -> dict[str, Any]:
    return {
        "layout": run.setup.layout.name,
        "order": run.setup.order,
        "micro_batches": len(run.micro_batches),
        "actions": len(run.placed),
        "metrics": metrics.as_dict(),
        "requests": [
            {"name": r.request.name, "prompt": r.request.prompt, "ttft": ttft}
            for r, ttft in zip(run.requests, run.ttft(), strict=True)
        ],
        "tpot": run.tpot(),
    }


def _write_files(
    spans: "Timeline", *, html: Path | None, trace: Path | None, timeline: Path | None
) -> None:
    from vllm_vpp.report.chrome import chrome_trace
    from vllm_vpp.report.figure import figure, page, write

    if html is not None:
        write(html, page("vllm-vpp simulate", [figure({spans.layout.name: spans})]))
    if trace is not None:
        write(trace, chrome_trace(spans))
    if timeline is not None:
        write(timeline, spans.to_json())


def _print(run: "Run", spans: "Timeline", metrics: "Metrics", width: int) -> None:
    from rich.console import Console
    from rich.table import Table

    from vllm_vpp.report.text import render

    console = Console()
    columns = ("compute", "exposed", "fill", "drain", "stall", "host")
    table = Table(title=f"{run.setup.layout.name}, {len(run.micro_batches)} micro-batches; seconds")
    for name in ("rank", *columns, "busy"):
        table.add_column(name, justify="right")
    for rank in metrics.ranks:
        cells = (f"{getattr(rank, name):.4g}" for name in columns)
        table.add_row(str(rank.rank), *cells, f"{rank.busy:.1%}")
    console.print(table)
    print(render(spans, width))
    ttft = run.ttft()
    overlap = metrics.overlap_ratio
    lines = [
        f"TTFT {ttft[0]:.4g} s" if len(ttft) == 1 else f"mean TTFT {sum(ttft) / len(ttft):.4g} s",
        f"makespan {metrics.makespan:.4g} s",
        f"{metrics.distance_to_limit:.3f} of the limit W/P",
        f"bubble {metrics.bubble_ratio:.1%}",
        "" if overlap is None else f"overlap of transfers {overlap:.1%}",
    ]
    console.print(", ".join(filter(None, lines)), highlight=False)
    console.print(
        "TTFT: arrival to first token. bubble: neither compute nor transfer, mean over ranks."
        " exposed: transfers while the rank computes nothing.",
        style="dim",
    )
