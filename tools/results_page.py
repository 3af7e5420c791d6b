"""The results page and the README's block: tables from results/*.json.

Owns what is said about each suite. Formulas are in docs/metrics.md, statistics in `bench.stats`.
"""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vllm_vpp.bench.stats import paired_ratio
from vllm_vpp.core.timeline import Timeline
from vllm_vpp.report.svg import svg

ROOT = Path(__file__).resolve().parent.parent
Rows = Sequence[tuple[str, ...]]
NOTE = "<!-- written by `make docs`; do not edit -->\n\n"


def table(headings: tuple[str, ...], rows: Rows) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def exists(name: str) -> bool:
    """Whether a suite has been measured."""
    return (ROOT / "results" / f"{name}.json").exists()


def load(name: str) -> dict[str, Any]:
    """One file of results."""
    data: dict[str, Any] = json.loads(
        (ROOT / "results" / f"{name}.json").read_text(encoding="utf-8")
    )
    if name == "demo":
        data["title"] = f"SmolLM2-135M, {data['tokens']:,} tokens, equal chunks (`make demo`)"
        data["arms"] = {arm: {"chunk": data["chunk"]} for arm in ("CPP", "VPP")}
    return data


def of(result: dict[str, Any], arm: str) -> list[dict[str, Any]]:
    """Runs of one arm, in rounds."""
    return sorted(
        (r for r in result["runs"] if r["arm"] == arm), key=lambda r: (r["round"], len(r["ttft"]))
    )


def ttft(run: dict[str, Any]) -> float:
    """TTFT of the first request."""
    return float(run["ttft"][0])


def median(runs: list[dict[str, Any]], value: Callable[[dict[str, Any]], float]) -> float:
    """Median over runs."""
    return statistics.median(map(value, runs))


def spread(runs: list[dict[str, Any]], value: Callable[[dict[str, Any]], float]) -> str:
    """Median and range in seconds."""
    values = [value(run) for run in runs]
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def rounds(result: dict[str, Any]) -> int:
    """How often each arm was measured."""
    return int(1 + max(r["round"] for r in result["runs"]))


def origin(result: dict[str, Any]) -> str:
    """Hardware, versions, command and repeats of a result."""
    facts = ", ".join(f"{k} {v}" for k, v in result["machine"].items())
    how = result.get("note", "arms in turn")
    return f"`{result['command']}`, {rounds(result)} rounds, {how}. {facts}.\n"


def prefill_rows(result: dict[str, Any]) -> Rows:
    """TTFT and breakdown of each arm."""
    return [
        (
            arm,
            str(result["arms"][arm]["chunk"]),
            spread(of(result, arm), ttft),
            f"{median(of(result, arm), lambda r: r['metrics']['bubble_ratio']):.1%}",
            f"{median(of(result, arm), lambda r: r['metrics']['overlap_ratio'] or 0.0):.0%}",
            f"{median(of(result, arm), lambda r: ttft(r) / r['metrics']['limit']):.3f}",
        )
        for arm in result["arms"]
    ]


PREFILL = ("", "chunk", "TTFT, s: median (range)", "bubble ratio", "overlap ratio", "TTFT / (W/P)")


def ratio(result: dict[str, Any], ours: str, theirs: str) -> str:
    """Paired ratio of TTFT with its interval."""
    return str(
        paired_ratio([ttft(r) for r in of(result, ours)], [ttft(r) for r in of(result, theirs)])
    )


def ratios(result: dict[str, Any], ours: str, others: Sequence[str]) -> str:
    """Paired ratios of TTFT of one arm to others, as a list."""
    if ours not in result["arms"] or len(of(result, ours)) < 2:
        return ""
    lines = [
        f"- TTFT of {ours} / {other}, 95% interval: **{ratio(result, ours, other)}**"
        for other in others
        if other in result["arms"]
    ]
    return "".join(f"{line}\n" for line in lines)


def agreement(result: dict[str, Any], *, equal_chunks: bool) -> str:
    """Whether answers agree: in tokens, and bitwise where chunk boundaries are equal."""
    tokens = {json.dumps(r["tokens"]) for r in result["runs"]}
    text = f"Tokens of all runs: {'identical' if len(tokens) == 1 else 'DIFFERENT'}."
    if equal_chunks:
        bits = {json.dumps(r["logprobs"]) for r in result["runs"]}
        text += f" Log-probabilities: {'bitwise equal' if len(bits) == 1 else 'DIFFERENT'}."
    return text + "\n"


def equal_body(result: dict[str, Any]) -> str:
    """CPP and V at equal chunks."""
    return "\n".join(
        [
            table(PREFILL, prefill_rows(result)),
            ratios(result, "VPP", ["CPP"]),
            agreement(result, equal_chunks=True),
            origin(result),
        ]
    )


def prefill_body(result: dict[str, Any]) -> str:
    """Every policy at its best: what README and results page both show."""
    return "\n".join(
        [
            table(PREFILL, prefill_rows(result)),
            ratios(result, "VPP", ["CPP", "DCPP"])
            + ratios(result, "VPP + ramp", ["CPP", "DCPP", "VPP"])
            + ratios(result, "3 sweeps + ramp", ["VPP + ramp"])
            + ratios(result, "4 sweeps + ramp", ["VPP + ramp"]),
            agreement(result, equal_chunks=False),
            origin(result),
        ]
    )


def titled(name: str, body: Callable[[dict[str, Any]], str]) -> Callable[[], str]:
    """A section that is nothing but a suite's title and a body."""

    def section() -> str:
        result = load(name)
        return f"## {result['title']}\n\n" + body(result)

    return section


def chunks_section() -> str:
    """Sweep of chunk sizes."""
    result = load("chunks")
    sizes = sorted({arm["chunk"] for arm in result["arms"].values()})
    apart = [(str(size), ratio(result, f"VPP {size}", f"CPP {size}")) for size in sizes]
    return (
        f"## {result['title']}\n\n"
        + table(PREFILL, prefill_rows(result))
        + "\nThe two layouts in turn, one chunk size after the other:\n\n"
        + table(("chunk", "TTFT of VPP / CPP"), apart)
        + "\n"
        + origin(result)
    )


def bubble_section() -> str:
    """Bubble against theory."""
    result = load("bubble")
    best = min((a for a in result["arms"] if a != "VPP"), key=lambda a: median(of(result, a), ttft))
    pairs = zip(of(result, "VPP"), of(result, best), strict=True)
    ratios = [(v["metrics"]["bubble_ratio"], c["metrics"]["bubble_ratio"]) for v, c in pairs]
    ours = paired_ratio([v for v, _ in ratios], [c for _, c in ratios])
    bound = median(of(result, "VPP"), lambda r: 1 - 1 / v_bound(r["chunk_seconds"], 2))
    measured = median(of(result, "VPP"), lambda r: r["metrics"]["bubble_ratio"])
    growth = median(of(result, "VPP"), lambda r: r["chunk_seconds"][-1] / r["chunk_seconds"][0])
    return (
        f"## {result['title']}\n\n"
        + table(PREFILL, prefill_rows(result))
        + f"\nThe last chunk takes {growth:.1f} times as long as the first. Best CPP: {best}. "
        f"Bubble ratio of "
        f"VPP / best CPP, 95% interval: **{ours}**. The lower bound of theory (3) for the "
        f"measured chunk times "
        f"is a bubble ratio of {bound:.1%}; measured {measured:.1%}.\n\n" + origin(result)
    )


def v_bound(chunks: list[float], ranks: int) -> float:
    """Lower bound of the V's makespan over W/P (theory 3)."""
    work = sum(chunks) / ranks
    return (work + (ranks - 1) / (2 * ranks) * (chunks[0] + chunks[-1])) / work


AT_BEST = ("policies", "policies-32k", "waves", "moe", "moe-16k", "moe-32k")
"""Suites of one long prompt, each policy at its best."""


def control_section() -> str:
    """Host time outside the model runners."""
    rows: list[tuple[str, ...]] = []
    for name in ("equal", *AT_BEST, "bubble", "short"):
        if not exists(name):
            continue
        result = load(name)
        for arm, c in result["control"].items():
            spent = c["engine_seconds"] + c["rank_seconds"]
            rows.append(
                (
                    name,
                    arm,
                    f"{spent / c['compute_seconds']:.2%}",
                    f"{c['engine_seconds'] / c['actions'] * 1e6:.0f}",
                    f"{c['rank_seconds'] / c['actions_per_rank'] * 1e6:.0f}",
                )
            )
    return (
        "## Control plane\n\nHost time in the executor and in the worker outside vLLM's model "
        "runner, against the "
        "compute time of a rank, over the whole life of each engine.\n\n"
        + table(
            ("suite", "arm", "share", "executor, us per action", "busiest rank, us per action"),
            rows,
        )
    )


def decode_section() -> str:
    """Tokens per second with a batch of 8."""
    result = load("decode")

    def rate(run: dict[str, Any]) -> float:
        tokens = sum(len(t) - 1 for t in run["tokens"])
        return float(tokens / (run["seconds"] - run["first_tokens_seconds"]))

    rows: list[tuple[str, ...]] = []
    for arm in result["arms"]:
        rates = [rate(r) for r in of(result, arm)]
        rows.append(
            (arm, f"{statistics.median(rates):.1f}", f"{min(rates):.1f} to {max(rates):.1f}")
        )
    pairs = paired_ratio(
        [rate(r) for r in of(result, "V")], [rate(r) for r in of(result, "linear")]
    )
    return (
        f"## {result['title']}\n\n"
        + table(("layout", "tokens/s, median", "range"), rows)
        + f"\nTokens per second of V / linear, 95% interval: **{pairs}**.\n\n"
        + origin(result)
    )


def memory_section() -> str:
    """Peak memory against micro-batches in flight."""
    result = load("memory")
    rows: list[tuple[str, ...]] = []
    for arm in result["arms"]:
        few, many = (r["peak_bytes"] for r in of(result, arm))
        mib = [f"{p[name] / 2**20:.0f}" for name in sorted(few) for p in (few, many)]
        rows.append((arm, *mib))
    depths = [a["vpp"]["in_flight"] for a in result["arms"].values()]
    totals = [sum(of(result, arm)[-1]["peak_bytes"].values()) / 2**20 for arm in result["arms"]]
    slope = (totals[-1] - totals[0]) / (depths[-1] - depths[0])
    return (
        f"## {result['title']}\n\nPeak resident memory of the workers so far, MiB, after 4 and "
        "then 16 requests of 4096 tokens at once.\n\n"
        + table(("", "rank 0, 4", "rank 0, 16", "rank 1, 4", "rank 1, 16"), rows)
        + f"\nOne more micro-batch in flight costs {slope:.1f} MiB over both ranks here. A "
        f"stage input of 2048 tokens "
        "is 4 MiB (512 hidden and 512 residual values of 2 bytes per token).\n\n" + origin(result)
    )


def last_token(run: dict[str, Any]) -> float:
    """Seconds until the last request's first token."""
    return float(run["first_tokens_seconds"])


def mean_ttft(run: dict[str, Any]) -> float:
    """Mean TTFT of the requests of a run."""
    return statistics.fmean(run["ttft"])


def together_rows(result: dict[str, Any], base: str) -> Rows:
    """Several requests at once: each arm against `base`."""
    rows: list[tuple[str, ...]] = []
    for arm in result["arms"]:
        runs, plain = of(result, arm), of(result, base)
        against = [
            "" if arm == base else str(paired_ratio([*map(f, runs)], [*map(f, plain)]))
            for f in (last_token, mean_ttft)
        ]
        bubble = median(runs, lambda r: r["metrics"]["bubble_ratio"])
        overlap = median(runs, lambda r: r["metrics"]["overlap_ratio"] or 0.0)
        rows.append(
            (
                arm,
                spread(runs, last_token),
                against[0],
                spread(runs, mean_ttft),
                against[1],
                f"{bubble:.1%}",
                f"{overlap:.0%}",
            )
        )
    return rows


TOGETHER = (
    "",
    "all first tokens, s",
    "ratio, 95% interval",
    "mean TTFT, s",
    "ratio, 95% interval",
    "bubble ratio",
    "overlap ratio",
)


def ablation_section() -> str:
    """The paper's ablation."""
    result = load("ablation")
    return (
        f"## {result['title']}\n\nRatios to the vanilla order without packing.\n\n"
        + table(TOGETHER, together_rows(result, "vanilla"))
        + "\n"
        + agreement(result, equal_chunks=False)
        + "\n"
        + origin(result)
    )


def depth_section() -> str:
    """In-flight depth."""
    result = load("depth")
    default = "V, 5 in flight"
    others = [arm for arm in result["arms"] if arm != default]
    return (
        f"## {result['title']}\n\n"
        + table(PREFILL, prefill_rows(result))
        + f"\nThe default is {default}.\n\n"
        + ratios(result, default, others)
        + "\n"
        + origin(result)
    )


def sliding_section() -> str:
    """Attention that does not grow linearly."""
    result = load("sliding")
    return (
        f"## {result['title']}\n\n"
        + table(PREFILL, prefill_rows(result))
        + "\n"
        + ratios(result, "V, hybrid", ["V, fixed", "V, ramp"])
        + "\n"
        + origin(result)
    )


SECTIONS: dict[str, Callable[[], str]] = {
    "demo": titled("demo", equal_body),
    "equal": titled("equal", equal_body),
    **{name: titled(name, prefill_body) for name in AT_BEST},
    "chunks": chunks_section,
    "bubble": bubble_section,
    "ablation": ablation_section,
    "depth": depth_section,
    "sliding": sliding_section,
    "decode": decode_section,
    "memory": memory_section,
}


def sections(more: Mapping[str, Callable[[], str]]) -> str:
    """All of the results page that comes from results, `more` after those of this module."""
    all_of_them = {**SECTIONS, **more}
    parts = [section() for name, section in all_of_them.items() if exists(name)]
    return "\n".join([*parts, control_section()])


README = {
    "equal": "",
    "moe": "where a chunk has a fixed cost, as on accelerators",
    "policies": "where chunks may be small at hardly any cost",
}
"""Suites that the README shows, and what each stands for."""


def compact(result: dict[str, Any]) -> str:
    """Each arm against the plain pipeline."""
    rows = [
        (
            arm,
            str(result["arms"][arm]["chunk"]),
            f"{median(of(result, arm), ttft):.2f}",
            f"{median(of(result, arm), lambda r: r['metrics']['bubble_ratio']):.1%}",
            "" if arm == "CPP" else ratio(result, arm, "CPP"),
        )
        for arm in result["arms"]
    ]
    return table(("", "limit, tokens", "TTFT, s", "bubble ratio", "TTFT / CPP, 95% interval"), rows)


def readme_block() -> str:
    """Picture and tables of the README."""
    parts = [
        "![Two ranks on one prompt: plain pipeline and V](docs/timelines.svg)\n",
        "A real run of each in equal chunks: chunk numbers in the boxes, idle time grey.\n",
    ]
    results = {name: load(name) for name in README if exists(name)}
    for name, result in results.items():
        said = README[name] and f" ({README[name]})"
        equal_chunks = name == "equal"
        parts.append(f"**{result['title']}**{said}, {rounds(result)} interleaved runs of each:\n")
        parts.append(compact(result))
        parts.append(agreement(result, equal_chunks=equal_chunks))
    facts = next(iter(results.values()))["machine"]
    parts.append(
        f"Two ranks on {facts['processor']}, {facts['cores']} cores; "
        f"`vllm-vpp bench {' '.join(results)}` measures it again. CPP: chunked prefill on a "
        "plain pipeline. DCPP: the same with chunks of equal time. Ramp: chunks grow at the start "
        "of a prompt and shrink at its end.\n"
    )
    return "\n".join(parts) + "\n"


def timelines() -> str:
    """docs/timelines.svg."""
    stored = {kept["arm"]: kept["timeline"] for kept in load("equal")["timelines"]}
    names = {"CPP": "CPP, plain pipeline", "VPP": "VPP, V layout"}
    return svg({title: Timeline.from_json(stored[arm]) for arm, title in names.items()})
