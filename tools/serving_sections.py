"""Sections of the results page on requests over time, and on what watching them costs."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from results_page import load, mean_ttft, median, of, origin, table, ttft

from vllm_vpp.bench.beside import LONG, SHORT
from vllm_vpp.bench.mixed import CONVERSATION, PAPER
from vllm_vpp.bench.overhead import LIVE, NOTHING, TRACE
from vllm_vpp.bench.stats import Ratio, paired_ratio

Run = dict[str, Any]
Value = Callable[[Run], float]
_WORDS = {
    PAPER: "The paper's lengths (evenly spaced quantiles of its distribution), one token to answer"
    " each, 16 clients that wait for their answers.",
    CONVERSATION: "The first 15 seconds of a public trace of conversations (Mooncake), arrivals"
    " as they were.",
}


def all_answered(run: Run) -> float:
    """Seconds until the last token of the last request."""
    return float(run["seconds"])


def of_case(result: dict[str, Any], arm: str, case: str) -> list[Run]:
    """Runs of an arm on a case, by round."""
    return [run for run in of(result, arm) if run["case"] == case]


def pairs(ours: Sequence[Run], theirs: Sequence[Run], value: Value) -> Ratio | None:
    """Paired ratio; None with a single round."""
    if len(ours) < 2:
        return None
    return paired_ratio([*map(value, ours)], [*map(value, theirs)])


def lengths_section() -> str:
    """One prompt at a time, against the plain pipeline at its best chunk for that length."""
    result = load("lengths")
    rows, at_edge = [], []
    for case in sorted(result["prompt_tokens"], key=int):
        runs = {arm: of_case(result, arm, case) for arm in result["arms"]}
        tried = {result["arms"][a]["chunk"]: a for a in runs if a.startswith("CPP")}
        plain = min(tried.values(), key=lambda a: median(runs[a], ttft))
        if plain == tried[min(tried)]:
            at_edge.append(case)
        for arm, mine in runs.items():
            against = "" if arm == plain else str(pairs(mine, runs[plain], ttft) or "-")
            bubble = f"{median(mine, lambda r: r['metrics']['bubble_ratio']):.1%}"
            rows.append((case, arm, f"{median(mine, ttft):.2f}", bubble, against))
    head = ("tokens", "", "TTFT, s", "bubble ratio", "TTFT / best CPP, 95% interval")
    edge = (
        f"At {', '.join(at_edge)} tokens the best plain pipeline has the smallest chunk that was"
        " tried; a smaller one may be better still.\n\n"
    )
    return f"## {result['title']}\n\n{table(head, rows)}\n{edge if at_edge else ''}{origin(result)}"


def mixed_rows(result: dict[str, Any], case: str) -> list[tuple[str, ...]]:
    """TTFT of each arm over all rounds, and ratios to the plain pipeline and to DCPP."""
    rows = []
    for arm in result["arms"]:
        runs = of_case(result, arm, case)
        seconds = np.array([t for run in runs for t in run["ttft"]])
        against = [
            "" if arm == other else str(pairs(runs, of_case(result, other, case), value) or "-")
            for other, value in (("CPP", mean_ttft), ("DCPP", mean_ttft), ("CPP", all_answered))
        ]
        shown = [float(seconds.mean()), *map(float, np.quantile(seconds, [0.5, 0.9, 0.99]))]
        cells = [f"{value:.2f}" for value in shown]
        rows.append((arm, str(result["arms"][arm]["chunk"]), *cells, *against))
    return rows


def mixed_section() -> str:
    """The paper's lengths and a real trace."""
    result = load("mixed")
    head = (
        *("", "chunk limit", "mean TTFT, s", "median", "p90", "p99"),
        *("mean TTFT / CPP, 95% interval", "/ DCPP", "all answered / CPP"),
    )
    parts = [
        f"### {case}\n\n{_WORDS.get(case, '')} {len(lengths)} prompts of {min(lengths)} to "
        f"{max(lengths)} tokens, mean {statistics.fmean(lengths):.0f}.\n\n"
        + table(head, mixed_rows(result, case))
        for case, lengths in result["prompt_tokens"].items()
    ]
    words = "TTFT of the requests of all rounds; ratios are those of a round's mean.\n"
    return "\n".join([f"## {result['title']}\n", words, *parts, origin(result)])


def worst(share: float, values: Callable[[Run], Sequence[float]]) -> Value:
    """A quantile of what a run holds of some requests."""
    return lambda run: float(np.quantile(np.array(values(run)), share))


def between_tokens(run: Run) -> list[float]:
    """Seconds from token to token, of all requests that decode."""
    return [seconds for gaps in run["itl"] for seconds in gaps]


def first_tokens(lengths: Sequence[int], length: int) -> Callable[[Run], list[float]]:
    """TTFT of the requests with prompts of that length."""
    return lambda run: [t for n, t in zip(lengths, run["ttft"], strict=True) if n == length]


def fairness_section() -> str:
    """Decodes and short requests while long prompts prefill, against the plain pipeline."""
    result = load("fairness")
    (lengths,) = result["prompt_tokens"].values()
    values = (
        worst(0.5, between_tokens),
        worst(0.99, between_tokens),
        worst(0.99, first_tokens(lengths, SHORT)),
        worst(0.5, first_tokens(lengths, LONG)),
    )
    rows = []
    for arm in result["arms"]:
        runs = of(result, arm)
        plain = arm.replace("VPP", "CPP").replace(" + ramp", "")
        against = [
            "" if arm == plain else str(pairs(runs, of(result, plain), value) or "-")
            for value in values[1:]
        ]
        cells = [f"{statistics.median(map(value, runs)):.2f}" for value in values]
        rows.append((arm, *cells, *against))
    head = (
        *("", "ITL, s: median", "p99", "TTFT of short ones: p99", "of long ones: median"),
        *("ITL p99 / CPP, 95% interval", "TTFT p99 of short ones / CPP", "of long ones / CPP"),
    )
    words = (
        "Four requests decode and twelve short ones trickle in while two prompts of "
        f"{LONG:,} tokens come, all with the same chunk limit. *Shared steps*: with vLLM's "
        "`long_prefill_token_threshold`, so that short prompts ride beside long ones; each is "
        "compared with the CPP of its kind. Medians over rounds.\n"
    )
    title = f"## {result['title']}\n"
    return "\n".join([title, words, table(head, rows), origin(result)])


def within(ratio: Ratio, limit: float) -> str:
    """Whether an overhead stays below a limit."""
    if ratio.high <= 1 + limit:
        return f"within {limit:.1%}"
    if ratio.low > 1 + limit:
        return f"more than {limit:.1%}"
    return f"these pairs do not decide whether it is within {limit:.1%}"


def recording_section() -> str:
    """TTFT with live numbers and with a trace, against without."""
    result = load("recording")
    rows = []
    for what, ours, theirs, limit in (
        ("live numbers", LIVE, NOTHING, 0.005),
        ("a trace, beside live numbers", TRACE, LIVE, 0.01),
        ("both", TRACE, NOTHING, 0.01),
    ):
        found = pairs(of(result, ours), of(result, theirs), ttft)
        said = ("-", "-") if found is None else (str(found), within(found, limit))
        rows.append((what, *said))
    return (
        f"## {result['title']}\n\nTTFT as the client sees it, with and without, on a V.\n\n"
        + table(("what", "TTFT with / without, 95% interval", ""), rows)
        + "\n"
        + origin(result)
    )
