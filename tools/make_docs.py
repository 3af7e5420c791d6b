"""Writes the documentation that comes from code and from results; `--check` compares only.

docs/vllm.md from the plugin's source, docs/features.md from its refusals; docs/results.md and the
README's table and picture from results/*.json.
"""

import ast
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from vllm_vpp.bench.stats import paired_ratio
from vllm_vpp.core.timeline import Timeline
from vllm_vpp.report.svg import svg

ROOT = Path(__file__).resolve().parent.parent
PLUGIN = ROOT / "src" / "vllm_vpp" / "plugin"
NOTE = "<!-- written by `make docs`; do not edit -->\n\n"
Rows = Sequence[tuple[str, ...]]


def table(headings: tuple[str, ...], rows: Rows) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def sources() -> Iterator[tuple[str, ast.Module]]:
    """Modules of the plugin with their syntax trees."""
    for path in sorted(PLUGIN.glob("*.py")):
        yield path.stem, ast.parse(path.read_text(encoding="utf-8"))


def imported() -> Rows:
    """Every symbol imported from vLLM, and the modules that use it."""
    users: dict[str, set[str]] = {}
    for name, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
                for alias in node.names:
                    users.setdefault(f"{node.module}.{alias.name}", set()).add(name)
    return [(f"`{symbol}`", ", ".join(sorted(where))) for symbol, where in sorted(users.items())]


def subclassed() -> Rows:
    """Classes over vLLM's, with what they override or add."""
    rows: list[tuple[str, ...]] = []
    for name, tree in sources():
        symbols = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm.")
            for alias in node.names
        }
        for node in tree.body:
            if not isinstance(node, ast.ClassDef):
                continue
            bases = [b.id for b in node.bases if isinstance(b, ast.Name) and b.id in symbols]
            if bases or node.name == "StageHost":
                methods = [m.name for m in node.body if isinstance(m, ast.FunctionDef)]
                over = ", ".join(bases) or "the platform's worker class"
                rows.append((f"`{name}.{node.name}`", over, ", ".join(f"`{m}`" for m in methods)))
    return rows


def vllm_page() -> str:
    """docs/vllm.md."""
    from vllm_vpp.plugin.borders import BORDERS
    from vllm_vpp.plugin.hooks import HOOKS

    hooks = [(f"`{h.target}`", h.reason, h.upstream, h.remove_when) for h in HOOKS]
    borders = [(f"`{b.symbol}`", b.use, b.why) for b in BORDERS]
    return (
        "# What of vLLM is touched\n\n"
        + NOTE
        + "Written for vLLM 0.32 with its V1 model runner.\n\n"
        "## Wrapped functions\n\nInstalled by the `vllm.general_plugins` entry point; each "
        "checks the signature "
        "that it expects, is idempotent, can be undone, and does nothing for a config without "
        "`vpp`.\n\n"
        + table(("target", "why", "upstream", "can go when"), hooks)
        + "\n## Subclasses\n\n"
        + table(("class", "over", "methods"), subclassed())
        + "\n## Undocumented state\n\n"
        + table(("symbol", "use", "why"), borders)
        + "\n## Imported symbols\n\n"
        + table(("symbol", "used by (module of the plugin)"), imported())
    )


def features_page() -> str:
    """docs/features.md."""
    from vllm_vpp.plugin.support import REFUSALS

    rows = [(f"`{r.feature}`", r.why, r.fix) for r in REFUSALS]
    return (
        "# What is refused\n\n"
        + NOTE
        + "Checked at start-up, in one line, before any process is started. What is "
        "not listed here and not covered by a test of equality is not claimed.\n\n"
        + table(("setting", "why it does not run with vpp", "what to do"), rows)
    )


def load(name: str) -> dict[str, Any]:
    """One file of results."""
    data: dict[str, Any] = json.loads(
        (ROOT / "results" / f"{name}.json").read_text(encoding="utf-8")
    )
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


def origin(result: dict[str, Any]) -> str:
    """Hardware, versions, command and repeats of a result."""
    facts = ", ".join(f"{k} {v}" for k, v in result["machine"].items())
    rounds = 1 + max(r["round"] for r in result["runs"])
    return f"`{result['command']}`, {rounds} rounds, arms in turn. {facts}.\n"


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


PAIRS = (
    ("VPP 1536", "CPP 1536", "at equal chunks"),
    ("VPP 512", "CPP 256", "each at its best fixed chunk on this machine"),
)


def comparison(result: dict[str, Any]) -> str:
    """The ratios of TTFT that the suite is about, as a list."""
    lines = [
        f"- TTFT of {ours} / {theirs} ({what}), 95% interval: **{ratio(result, ours, theirs)}**"
        for ours, theirs, what in PAIRS
    ]
    return "\n".join(lines) + "\n"


def same_chunks(result: dict[str, Any]) -> str:
    """Whether answers agree: bitwise where chunk boundaries are equal, in tokens everywhere."""
    tokens = {json.dumps(r["tokens"]) for r in result["runs"]}
    pair = {json.dumps(r["logprobs"]) for r in result["runs"] if r["arm"].endswith(" 1536")}
    agree = "identical" if len(tokens) == 1 else "different"
    bits = "bitwise equal" if len(pair) == 1 else "DIFFERENT"
    return f"Tokens of all runs: {agree}. Log-probabilities at equal chunks: {bits}.\n"


def prefill_body(result: dict[str, Any]) -> str:
    """Table, ratios, agreement of answers and origin: what README and results page both show."""
    return "\n".join(
        [
            table(PREFILL, prefill_rows(result)),
            comparison(result),
            same_chunks(result),
            origin(result),
        ]
    )


def prefill_section() -> str:
    """Long prompt on a real model."""
    result = load("prefill")
    return f"## {result['title']}\n\n" + prefill_body(result)


def chunks_section() -> str:
    """Sweep of chunk sizes."""
    result = load("chunks")
    return (
        f"## {result['title']}\n\n" + table(PREFILL, prefill_rows(result)) + "\n" + origin(result)
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


def control_section() -> str:
    """Host time outside the model runners."""
    rows: list[tuple[str, ...]] = []
    for name in ("prefill", "bubble"):
        if not (ROOT / "results" / f"{name}.json").exists():
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


SECTIONS = {
    "prefill": prefill_section,
    "chunks": chunks_section,
    "bubble": bubble_section,
    "decode": decode_section,
    "memory": memory_section,
}


def results_page() -> str:
    """docs/results.md."""
    parts = [
        section()
        for name, section in SECTIONS.items()
        if (ROOT / "results" / f"{name}.json").exists()
    ]
    return (
        "# Results\n\n"
        + NOTE
        + "Generated from `results/*.json` (`make bench`, then `make docs`). The machine drifts "
        "by a factor of two between minutes: compare ratios, and only within one table. "
        "Formulas are in metrics.md.\n\n" + "\n".join([*parts, control_section()])
    )


def readme() -> str:
    """README.md with its generated block replaced."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    begin, end = "<!-- results -->\n", "<!-- end of results -->"
    before, rest = text.split(begin)
    after = rest.split(end)[1]
    result = load("prefill")
    block = (
        "![Two ranks on one prompt: plain pipeline and V](docs/timelines.svg)\n\n"
        f"{result['title']}: a real run of each with chunks of 1536, chunk numbers in the boxes, "
        "idle time grey.\n\n" + prefill_body(result) + "\n"
    )
    return before + begin + block + end + after


def timelines() -> str:
    """docs/timelines.svg."""
    stored = {kept["arm"]: kept["timeline"] for kept in load("prefill")["timelines"]}
    names = {"CPP 1536": "CPP, plain pipeline", "VPP 1536": "VPP, V layout"}
    return svg({title: Timeline.from_json(stored[arm]) for arm, title in names.items()})


PAGES: dict[str, Callable[[], str]] = {
    "docs/vllm.md": vllm_page,
    "docs/features.md": features_page,
    "docs/results.md": results_page,
    "docs/timelines.svg": timelines,
    "README.md": readme,
}


def main() -> int:
    """Write the pages, or with --check say which are out of date."""
    stale = []
    for name, make in PAGES.items():
        path, text = ROOT / name, make()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
    print("\n".join(f"{'stale' if '--check' in sys.argv else 'written'}: {name}" for name in stale))
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
