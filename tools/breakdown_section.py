"""Where the seconds of the longest and of short prompts go, arm by arm.

Owns the breakdown tables of the results page. Formulas are `core.metrics`, rows
`report.comparison`.
"""

from pathlib import Path
from typing import Any

from results_page import (
    PREFILL,
    TOGETHER,
    load,
    mean_ttft,
    median,
    of,
    origin,
    prefill_rows,
    ratios,
    table,
    together_rows,
)

from vllm_vpp.core.metrics import Metrics, measure
from vllm_vpp.report.comparison import Row, compare_runs, moved
from vllm_vpp.report.runs import runs_of_result


def breakdown(result: dict[str, Any]) -> str:
    """Seconds per rank of the kept run of each arm, and the differences one arm to the next."""
    runs = list(runs_of_result(Path(result["suite"]), result))
    names = [run.name for run in runs]
    metrics = [measure(run.timeline) for run in runs]
    rows = compare_runs(metrics)
    body = [(row.label.strip(), *(row.cell(i) for i in range(len(runs)))) for row in rows]
    return (
        "Seconds per rank (mean over ranks) of the run of each arm that is nearest to its median:"
        f"\n\n{table(('', *names), [*body, _sum(rows, metrics)])}\n{_differences(names, metrics)}"
    )


def _sum(rows: list[Row], metrics: list[Metrics]) -> tuple[str, ...]:
    """The parts added up, less the makespan."""
    parts = [row for row in rows if row.is_part]
    left = [
        sum(row.values[i] or 0.0 for row in parts) - run.makespan for i, run in enumerate(metrics)
    ]
    return ("sum of the parts - makespan", *(f"{abs(seconds):.3f}" for seconds in left))


def _differences(names: list[str], metrics: list[Metrics]) -> str:
    """A sentence for each arm against the one before."""
    lines = []
    for i in range(1, len(names)):
        pair = compare_runs(metrics[i - 1 : i + 1])
        lines.append(f"- {moved(pair, names[i - 1 : i + 1], 1)}.\n")
    return "".join(lines)


def long_section() -> str:
    """The longest prompt."""
    result = load("long")
    return (
        f"## {result['title']}\n\n{table(PREFILL, prefill_rows(result))}\n"
        f"{ratios(result, 'VPP + ramp', ['CPP', 'DCPP', 'VPP'])}\n"
        f"{breakdown(result)}\n{origin(result)}"
    )


def short_section() -> str:
    """Where a V has nothing to win."""
    result = load("short")
    plain = [arm for arm in result["arms"] if arm.startswith("CPP")]
    best = min(plain, key=lambda arm: median(of(result, arm), mean_ttft))
    lengths = result["prompt_tokens"][""]
    return (
        f"## {result['title']}\n\n{len(lengths)} prompts of {min(lengths)} to {max(lengths)} "
        f"tokens. Ratios to the best plain pipeline, {best}.\n\n"
        + table(TOGETHER, together_rows(result, best))
        + "\n"
        + breakdown(result)
        + "\n"
        + _per_action(result)
        + "\n"
        + origin(result)
    )


def _per_action(result: dict[str, Any]) -> str:
    """What dispatching costs, from the whole life of each engine."""
    rows = []
    for arm, control in result["control"].items():
        actions = control["actions_per_rank"] / len(of(result, arm))
        each = control["rank_seconds"] / control["actions_per_rank"]
        rows.append((arm, f"{actions:.0f}", f"{each * 1e6:.0f}", f"{actions * each * 1e3:.0f}"))
    return "Host time outside the model runners, busiest rank:\n\n" + table(
        ("", "actions per run", "us per action", "ms per run"), rows
    )
