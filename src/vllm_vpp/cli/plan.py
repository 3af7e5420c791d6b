"""`vllm-vpp plan`: whether the V helps, with which chunks, and by how much."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vllm_vpp.cli import given
from vllm_vpp.errors import InputError

if TYPE_CHECKING:
    from vllm_vpp.sim.options import Option, Problem
    from vllm_vpp.sim.plan import Report
    from vllm_vpp.sim.workload import WorkloadResult

__all__ = ["plan"]

_PARTS = ("ideal", "fragmentation", "fill", "drain", "waiting", "transfers", "host")


def plan(
    *,
    model: given.ModelName = None,
    hardware: given.HardwareName = None,
    cost: given.Cost = None,
    ranks: given.Ranks = 2,
    tensor_parallel: given.TensorParallel = 1,
    prompts: Annotated[str, typer.Option(help="Prompt lengths, such as 32K,128K.")] = "32K,128K",
    workload: Annotated[Path | None, typer.Option(help="A trace, one request a line.")] = None,
    across_nodes: given.AcrossNodes = None,
    dispatch: given.Dispatch = None,
    depth: given.Depth = None,
    max_chunk: given.MaxChunk = None,
    block: given.Block = None,
    weight_bytes: given.WeightBytes = None,
    itl_target_ms: given.ItlTarget = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with pictures.")] = None,
) -> None:
    """Search layouts and chunkings for a model on some hardware, and say what to run."""
    from vllm_vpp.sim.bounded import bounded
    from vllm_vpp.sim.plan import plan_prompt
    from vllm_vpp.sim.request import read_trace
    from vllm_vpp.sim.workload import affordable, run_workload

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
    target = given.seconds(itl_target_ms)
    requests = read_trace(workload) if workload is not None else []
    reports = [plan_prompt(problem, prompt) for prompt in given.sizes(prompts)]
    longest = max(reports, key=lambda report: report.prompt)
    bound = None if target is None else bounded(longest.fastest, longest.prompt, target)
    chosen = _distinct(reports[-1])
    some = affordable(chosen, requests)
    traced = [run_workload(option, some) for option in chosen] if requests else []
    answer = [_as_data(problem, report, model, itl_target_ms) for report in reports]
    if html is not None:
        _write_page(html, problem, reports, [data["serve"] for data in answer])
    if as_json:
        found: dict[str, Any] = {"prompts": answer, "workload": [_plain(r) for r in traced]}
        if bound is not None:
            found["itl"] = _plain(bound)
        print(json.dumps(found, indent=1))
        return
    for report, data in zip(reports, answer, strict=True):
        _print_report(report, data)
    if bound is not None:
        print(f"One prompt of {longest.prompt:,} tokens, {bound.sentence}\n")
    _print_workload(traced, len(requests))
    _print_sources(problem)


def _distinct(report: "Report") -> list["Option"]:
    """The options worth running a workload on, each once."""
    found = {o.name: o for o in (report.baseline, report.fastest, report.busiest)}
    return [o for o in found.values() if o.complexity > 0]


def _plain(record: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(record)


def _as_data(
    problem: "Problem", report: "Report", model: str | None, itl_target_ms: float | None
) -> dict[str, Any]:
    from vllm_vpp.core.split import even_split

    return {
        "prompt": report.prompt,
        "fastest": report.fastest.name,
        "highest_throughput": report.busiest.name,
        "baseline": report.baseline.name,
        "gain": report.gain,
        "gain_range": report.gain_range,
        "reasons": report.reasons,
        "serve": _serve(report.fastest, model, itl_target_ms),
        "options": [
            {
                "name": o.name,
                "ttft": o.ttft,
                "throughput": o.throughput,
                "layers": o.split,
                "layers_of_an_even_split": even_split(problem.layers, o.layout.stages),
                "in_flight": o.depth,
                "chunking": o.candidate.spec,
                "chunks": o.candidate.chunks,
                "seconds": _plain(o.breakdown),
                "memory": [_plain(rank) | {"needed": rank.needed} for rank in o.memory],
            }
            for o in report.options
        ],
    }


def _serve(option: "Option", model: str | None, itl_target_ms: float | None) -> str:
    from vllm_vpp.core.cost import QuadraticCost
    from vllm_vpp.report.serve import serve_line

    law = option.pipeline.law
    assert isinstance(law, QuadraticCost), law
    return serve_line(
        model or "MODEL",
        option.layout,
        option.candidate.spec,
        ways=option.ways,
        largest=max(option.candidate.chunks),
        law=law,
        split=option.split,
        itl_target_ms=itl_target_ms,
    )


def _print_report(report: "Report", data: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=f"One prompt of {report.prompt:,} tokens")
    table.add_column("option")
    for name in ("TTFT, s", "to plain", "tokens/s", "chunks"):
        table.add_column(name, justify="right")
    for option in report.options:
        table.add_row(
            option.name,
            f"{option.ttft:.4g}",
            f"{report.baseline.ttft / option.ttft - 1:+.1%}",
            f"{option.throughput:,.0f}",
            _sizes(option.candidate.chunks),
            style="bold" if option is report.fastest else None,
        )
    console.print(table)
    console.print(_parts_table(_distinct(report)))
    console.print(_verdict(report), highlight=False)
    for reason in report.reasons:
        console.print(f"  - {reason}", highlight=False)
    console.print(f"\n{data['serve']}\n", highlight=False, soft_wrap=True)


def _parts_table(options: list["Option"]) -> Any:
    """Where the seconds go, of a few options side by side."""
    from rich.table import Table

    table = Table(title="Where the seconds go (means over ranks)")
    table.add_column("")
    for option in options:
        table.add_column(option.name, justify="right")
    for name in (*_PARTS, "imbalance"):
        label = "of which imbalance" if name == "imbalance" else name
        table.add_row(label, *(f"{getattr(o.breakdown, name):.3f}" for o in options))
    return table


def _sizes(chunks: tuple[int, ...]) -> str:
    least, most = min(chunks), max(chunks)
    return f"{len(chunks)} of {least}" if least == most else f"{len(chunks)} of {least}-{most}"


def _verdict(report: "Report") -> str:
    fastest, baseline = report.fastest, report.baseline
    if fastest is baseline:
        first = f"Keep the plain pipeline ({fastest.name})."
    else:
        first = f"{fastest.name}: {report.gain:.1%} faster to the first token than {baseline.name}"
        if report.gain_range is not None:
            low, high = report.gain_range
            first += f" ({low:.1%} to {high:.1%} under other assumptions)"
        first += "."
    if report.busiest is not fastest:
        first += f" For many prompts at once: {report.busiest.name}."
    return first


def _print_workload(results: list["WorkloadResult"], total: int) -> None:
    if not results:
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Workload, of {total} requests; seconds")
    for name in ("option", "requests", "mean TTFT", "p50", "p99", "mean TPOT", "tok/s"):
        table.add_column(name, justify="left" if name == "option" else "right")
    for r in results:
        tpot = "" if r.mean_tpot is None else f"{r.mean_tpot:.4f}"
        ttft = (f"{value:.4g}" for value in (r.mean_ttft, r.p50_ttft, r.p99_ttft))
        table.add_row(r.name, str(r.requests), *ttft, tpot, f"{r.throughput:,.0f}")
    Console().print(table)


def _print_sources(problem: "Problem") -> None:
    from rich.console import Console

    console = Console()
    console.print("Where the numbers come from:")
    for line in _sources(problem):
        console.print(f"  - {line}", highlight=False)


def _sources(problem: "Problem") -> list[str]:
    if problem.device is None:
        notes = getattr(problem.cost, "notes", {})
        return [f"measured: {key}: {value}" for key, value in notes.items()] or ["measured"]
    return [
        *(f"{problem.device.hardware.name}: {line}" for line in problem.device.hardware.sources),
        f"dispatch: {problem.gap * 1e6:.0f} us before each action (assumed unless you gave it)",
    ]


def _write_page(path: Path, problem: "Problem", reports: list["Report"], serve: list[str]) -> None:
    from html import escape

    from vllm_vpp.report.figure import figure, page, write

    sections, figures = [], []
    for report, line in zip(reports, serve, strict=True):
        chosen = _distinct(report)
        sections.append(f"<h2>{report.prompt:,} tokens</h2><p>{escape(_verdict(report))}</p>")
        sections.append("<ul>" + "".join(f"<li>{escape(r)}</li>" for r in report.reasons) + "</ul>")
        sections.append(_html_table(report))
        sections.append(f"<pre>{escape(line)}</pre>")
        runs = {o.name: o.pipeline.run(o.candidate.spec, [report.prompt]) for o in chosen}
        named = {f"{n}, {report.prompt:,} tokens": r.timeline() for n, r in runs.items()}
        figures.append(figure(named))
    lines = "".join(f"<li>{escape(line)}</li>" for line in _sources(problem))
    sections.append(f"<h2>Where the numbers come from</h2><ul>{lines}</ul>")
    if not path.parent.is_dir():
        raise InputError(f"--html {path}: no such folder; create {path.parent} first")
    write(path, page("vllm-vpp plan", figures, sections))


def _html_table(report: "Report") -> str:
    head = "".join(f"<th>{name}</th>" for name in ("option", "TTFT", "tok/s", *_PARTS))
    rows = "".join(
        f"<tr><td>{o.name}</td><td>{o.ttft:.4g}</td><td>{o.throughput:,.0f}</td>"
        + "".join(f"<td>{getattr(o.breakdown, name):.3g}</td>" for name in _PARTS)
        + "</tr>"
        for o in report.options
    )
    return f"<table><tr>{head}</tr>{rows}</table>"
