"""`vllm-vpp demo`: a long prompt on a plain pipeline and on a V, in turn, on this machine."""

import shlex
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vllm_vpp.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from vllm_vpp.bench.demo import Demo

__all__ = ["demo"]


def demo(
    tokens: Annotated[
        int | None,
        typer.Option(
            help="Length of the prompt in tokens.",
            show_default="16000, or fewer where all runs would take over a quarter of an hour",
        ),
    ] = None,
    chunk: Annotated[int, typer.Option(help="Tokens per chunk, for both.")] = 1536,
    pairs: Annotated[int, typer.Option(help="Interleaved pairs of runs.")] = 5,
    out: Annotated[Path, typer.Option(help="Folder for demo.html, demo.json and the logs.")] = Path(
        "demo"
    ),
) -> None:
    """Run a long prompt on a real model on two ranks, as a plain pipeline and as a V, in turn."""
    from rich.console import Console

    from vllm_vpp.bench.demo import LONGEST, run
    from vllm_vpp.cli.progress import Progress

    longest = LONGEST if tokens is None else tokens
    if not 1024 <= longest <= 131_072:
        raise InputError(f"--tokens {tokens}: must be 1024 to 131072; choose such a length")
    if not 128 <= chunk <= longest:
        raise InputError(f"--chunk {chunk}: must be 128 to {longest} (the prompt); choose one")
    if pairs < 2:
        raise InputError(f"--pairs {pairs}: must be at least 2, an interval needs them; choose 5")
    console = Console()
    out.mkdir(parents=True, exist_ok=True)
    with Progress(console, "preparing the model", steps=5 + (tokens is None) + 2 * pairs) as tell:
        found = run(
            tokens=tokens,
            chunk=chunk,
            pairs=pairs,
            folder=out,
            command=shlex.join(["vllm-vpp", *sys.argv[1:]]),
            tell=tell,
        )
    _print(console, found)
    if found.tokens < longest:
        console.print(
            f"\nThe prompt was shortened: one of {longest} tokens would take this machine long. "
            f"`vllm-vpp demo --tokens {longest}` runs it."
        )
    _write(found, out)
    console.print(f"\nWritten: {out}/demo.html (open it in a browser), {out}/demo.json (all raw)")


def _print(console: "Console", found: "Demo") -> None:
    from vllm_vpp.bench.demo import CPP, VPP
    from vllm_vpp.report.text import render

    console.print(
        f"\nSmolLM2-135M, {found.tokens} tokens in chunks of {found.chunk}, {found.ranks} ranks, "
        f"{len(found.of(VPP))} interleaved pairs"
    )
    console.print(ttft_table(found))
    ratio = found.ratio
    verdict = "sooner" if ratio.value < 1 else "later"
    verdict = f": the V answers {abs(1 - ratio.value):.1%} {verdict}"
    console.print(
        f"TTFT of VPP / CPP, 95% interval: {ratio}{'' if ratio.within_noise else verdict}"
    )
    console.print(rank_table(found))
    console.print(
        "bubble = neither computing nor transferring; shares of the time from the first to the "
        "last compute; run of median TTFT"
    )
    for arm in (CPP, VPP):
        timeline = found.median(arm).timeline
        assert timeline is not None
        console.print(f"\n{arm}, run of median TTFT:")
        console.print(render(timeline, min(console.width, 120)), highlight=False, soft_wrap=True)
    same = "identical" if found.same_tokens else "DIFFERENT"
    bits = "finite and bitwise equal" if found.same_logprobs else "DIFFERENT OR NOT FINITE"
    console.print(f"\nAnswer: {found.answer!r}. Tokens: {same}. Log-probabilities: {bits}.")


def ttft_table(found: "Demo") -> "Table":
    """TTFT, bubble ratio and distance to the limit of both arms."""
    from rich.table import Table

    from vllm_vpp.bench.demo import CPP, VPP

    table = Table(title="Time to first token: plain pipeline (CPP), V (VPP)")
    for heading in ("", "median", "range", "bubble ratio", "overlap ratio", "TTFT/(W/P)"):
        table.add_column(heading, justify="right")
    for arm, name in ((CPP, "CPP"), (VPP, "VPP")):
        runs = found.of(arm)
        ttft = [r.ttft for r in runs]
        bubble = statistics.median(r.metrics.bubble_ratio for r in runs)
        distance = statistics.median(r.ttft / r.metrics.limit for r in runs)
        table.add_row(
            name,
            f"{statistics.median(ttft):.2f} s",
            f"{min(ttft):.2f} to {max(ttft):.2f} s",
            f"{bubble:.1%}",
            f"{statistics.median(r.metrics.overlap_ratio or 0.0 for r in runs):.1%}",
            f"{distance:.3f}",
        )
    return table


def rank_table(found: "Demo") -> "Table":
    """Busy, waiting and communicating share of each rank."""
    from rich.table import Table

    from vllm_vpp.bench.demo import CPP, VPP

    table = Table(title="What each rank did")
    for heading in ("", "rank", "busy", "waiting", "communicating", "bubble", "fill", "drain"):
        table.add_column(heading, justify="right")
    for arm in (CPP, VPP):
        for rank in found.median(arm).metrics.ranks:
            whole = rank.makespan
            shares = (rank.stall + rank.host, rank.exposed, rank.bubble, rank.fill, rank.drain)
            table.add_row(
                arm, str(rank.rank), f"{rank.busy:.1%}", *(f"{s / whole:.1%}" for s in shares)
            )
    return table


def _write(found: "Demo", out: Path) -> None:
    import json

    from vllm_vpp.bench.demo import CPP, VPP
    from vllm_vpp.report.figure import figure, page, write

    timelines = {
        name: timeline
        for arm, name in ((CPP, "CPP: plain pipeline"), (VPP, "VPP: V layout"))
        if (timeline := found.median(arm).timeline) is not None
    }
    section = _as_html(found)
    write(out / "demo.html", page("vllm-vpp demo", [figure(timelines)], [section]))
    write(out / "demo.json", json.dumps(found.as_dict(), indent=1))


def _as_html(found: "Demo") -> str:
    import html
    import io

    from rich.console import Console

    from vllm_vpp.machine import machine

    text = io.StringIO()
    console = Console(file=text, width=100)
    console.print(ttft_table(found), rank_table(found))
    console.print(f"TTFT of VPP / CPP, 95% interval: {found.ratio}")
    facts = ", ".join(f"{name} {value}" for name, value in machine().items())
    return (
        f"<pre>{html.escape(text.getvalue())}</pre><p>{html.escape(facts)}</p>"
        f"<p>Command: <code>{html.escape(found.command)}</code></p>"
    )
