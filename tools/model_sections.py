"""Sections of the results page on what chunks cost: curves, predictions, operator groups."""

import statistics
from typing import Any

from reality_section import recorded, speed
from results_page import load, median, of, origin, spread, table, ttft

from vllm_vpp.bench.predicted import FITTED, STOCK
from vllm_vpp.profiles.operators import OperatorGroup
from vllm_vpp.report.curves import curves
from vllm_vpp.sim.line import line
from vllm_vpp.sim.linearity import linearity
from vllm_vpp.sim.reality import cost_of, predict

RANKS = 2


def curves_of(result: dict[str, Any]) -> dict[str, list[float]]:
    """Seconds of each chunk by kind of attention, median over rounds."""
    rounds = {arm: [run["chunk_seconds"] for run in of(result, arm)] for arm in result["arms"]}
    found = {
        arm: [statistics.median(values) for values in zip(*times, strict=True)]
        for arm, times in rounds.items()
    }
    timed: dict[str, list[float]] = result.get("timed", {})
    return found | timed


def tau_section() -> str:
    """How chunk times grow."""
    result = load("tau")
    rows, said = [], []
    for arm, tau in curves_of(result).items():
        fitted = line(tau)
        widths = [(high - low) / 2 for low, high in zip(fitted.low, fitted.high, strict=True)]
        rows.append(
            (
                arm,
                f"{tau[0]:.3f} to {tau[-1]:.3f}",
                f"{fitted.intercept:.3f} {fitted.slope:+.4f} k",
                f"{fitted.r_squared:.4f}",
                f"{min(widths) * 1e3:.1f} to {max(widths) * 1e3:.1f}",
            )
        )
        said.append(f"- {arm}: {linearity(tau, RANKS).verdict()}.")
    head = ("attention", "first and last chunk, s", "line, s", "R²", "half width of 95% band, ms")
    return (
        f"## {result['title']}\n\n![Chunk times against chunk number, with line and band]"
        "(tau.svg)\n\nMedians over rounds; compute of both ranks. On this machine vLLM runs latent "
        "attention without chunks, so layers of a small DeepSeek-V3 were timed alone, on one core "
        "with PyTorch's kernels, in chunks of 512; their prefix is built again for every chunk."
        "\n\n" + table(head, rows) + "\n" + "\n".join(said) + "\n\n" + origin(result)
    )


def tau_picture() -> str:
    """docs/tau.svg."""
    return curves(curves_of(load("tau")))


def arms_section() -> str:
    """Every policy once, with predictions."""
    result = load("arms")
    kept = result | {"timelines": [t for t in result["timelines"] if t["timeline"] is not None]}
    runs = {one.arm: one.run for one in recorded(kept)}
    cost, overheads = cost_of([runs[arm] for arm in FITTED])
    rows: list[tuple[str, ...]] = []
    for arm in result["arms"]:
        seconds = spread(of(result, arm), ttft)
        if arm not in runs:
            rows.append((arm, "", seconds, *[""] * 5))
            continue
        (found,) = predict(runs[arm], cost, overheads)
        distance = median(of(result, arm), lambda r: ttft(r) / r["metrics"]["limit"])
        own = (1 + found.error) * speed(runs[arm], cost) - 1
        rows.append(
            (
                arm,
                str(found.chunks),
                seconds,
                f"{distance:.3f}",
                f"{found.predicted:.2f}" + (" (fitted)" if arm in FITTED else ""),
                f"{own:+.1%}",
                f"{found.measured_bubble:.1%}",
                f"{found.predicted_bubble:.1%}",
            )
        )
    head = (
        *("", "chunks", "TTFT, s: median (range)", "TTFT / (W/P)", "predicted, s"),
        *("error at own speed", "bubble ratio", "predicted"),
    )
    return (
        f"## {result['title']}\n\nPredictions run the chunks of the arm's run through the "
        f"simulator, with costs fitted to {' and '.join(FITTED)} (R² {cost.r_squared:.4f}); the "
        "error is that of the time once the machine's drift between the runs is taken off. "
        f"Of {STOCK}, only what the client sees: it has half as many cores, since on a CPU it "
        "runs no eager model on two ranks.\n\n" + table(head, rows) + "\n" + origin(result)
    )


def operators_section() -> str:
    """Where the compute of both layouts goes, by operator group."""
    result = load("operators")
    arms = list(result["arms"])
    found = {arm: [x for r in of(result, arm) for x in r["operators"]["ranks"]] for arm in arms}

    def mean(arm: str, group: str, field: str) -> float:
        return statistics.fmean(rank["groups"][group][field] for rank in found[arm])

    groups = [group.value for group in OperatorGroup]
    whole = {arm: sum(mean(arm, group, "seconds") for group in groups) for arm in arms}
    rows: list[tuple[str, ...]] = []
    for group in groups:
        cells: list[str] = []
        for arm in arms:
            seconds = mean(arm, group, "seconds")
            cells += [f"{seconds:.3f} ({seconds / whole[arm]:.1%})"]
            cells += [f"{mean(arm, group, 'calls'):.0f}"]
        change = mean(arms[1], group, "seconds") - mean(arms[0], group, "seconds")
        rows.append((group, *cells, f"{change:+.3f}"))
    head = ("group", *(text for arm in arms for text in (f"{arm}, s", "calls")))
    return (
        f"## {result['title']}\n\nSeconds per rank under torch.profiler, mean over ranks and "
        "rounds, of the thread that computes: transfers run in other threads, waiting is not an "
        "operator, and norms are plain arithmetic (other) on a CPU.\n\n"
        + table((*head, f"{arms[1]} - {arms[0]}"), rows)
        + "\n"
        + origin(result)
    )
