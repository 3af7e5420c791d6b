"""docs/claims.md: each of the paper's claims, what was measured here, what is simulated there.

Owns the list of claims and which files answer them. Where a file or an arm is missing, the line
says so. The rule for verdicts is `bench.claims`, the statistics are those of the results page.
"""

import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

from paper_machine import SIZES, PaperMachine, bubble_ratio, makespan
from results_page import NOTE, exists, last_token, load, median, of, table, ttft
from serving_sections import all_answered, of_case

from vllm_vpp.bench.claims import SLACK, Range, Verdict, faster, verdict
from vllm_vpp.bench.mixed import PAPER
from vllm_vpp.bench.stats import Ratio, paired_ratio
from vllm_vpp.sim.paper import CPP, VPP, K, calibrate_on

Run = dict[str, Any]
Value = Callable[[Run], float]
NOT_MEASURED = "not measured"
NOT_SIMULATED = "not simulated"
CHUNK = 24 * K


class Claim(NamedTuple):
    """`published` bounds what was measured here, `there` what is simulated (None: the same).

    `missing` stands where nothing was measured.
    """

    what: str
    paper: str
    published: Range
    here: Callable[[], tuple[str, Ratio] | None] = lambda: None
    simulated: Callable[[PaperMachine], Range] | None = None
    there: Range | None = None
    missing: str = NOT_MEASURED


def paired(suite: str, ours: str, theirs: str, value: Value = ttft) -> tuple[str, Ratio] | None:
    """Suite and paired ratio; None without two rounds of both arms."""
    if not exists(suite):
        return None
    result = load(suite)
    case = PAPER if suite == "mixed" else None
    runs = [
        of(result, arm) if case is None else of_case(result, arm, case) for arm in (ours, theirs)
    ]
    if min(map(len, runs)) < 2:
        return None
    return suite, paired_ratio([*map(value, runs[0])], [*map(value, runs[1])])


def best(suite: str, prefix: str, value: Value) -> str:
    """Of the arms whose name starts so, that of the smallest median."""
    if not exists(suite):
        return ""
    result = load(suite)
    arms = [arm for arm in result["arms"] if arm.startswith(prefix) and of(result, arm)]
    return min(arms, key=lambda arm: median(of(result, arm), value), default="")


def short() -> tuple[str, Ratio] | None:
    """Many short prompts at once, each layout at its best chunk."""
    ours, theirs = (best("short", name, last_token) for name in ("VPP", "CPP"))
    return paired("short", ours, theirs, last_token)


def idle() -> tuple[str, Ratio] | None:
    """Share of rank time without compute, V over the plain pipeline at its best depth."""
    plain = best("bubble", "CPP", ttft)
    return paired("bubble", "VPP", plain, lambda r: float(r["metrics"]["idle_ratio"]))


def exposed() -> tuple[str, Ratio] | None:
    """Share of transfer time without compute, V over the plain pipeline at its best depth."""
    return paired(
        "bubble",
        "VPP",
        best("bubble", "CPP", ttft),
        lambda r: 1 - float(r["metrics"]["overlap_ratio"] or 0.0),
    )


def bubble(run: Run) -> float:
    """Bubble ratio of a run."""
    return float(run["metrics"]["bubble_ratio"])


def with_fixed_cost(ours: str, theirs: str, published: Range) -> list[Claim]:
    """Where a chunk has a fixed cost, at three lengths."""

    def claim(suite: str, tokens: str) -> Claim:
        what = f"long, chunks with a fixed cost, {tokens} tokens: {ours} over {theirs}"
        return Claim(what, "the same", published, lambda: paired(suite, ours, theirs))

    lengths = {"moe": "8000", "moe-16k": "16,000", "moe-32k": "32,000"}
    return [claim(suite, tokens) for suite, tokens in lengths.items()]


IDLE = ((VPP.bubble + VPP.exposed) / VPP.total) / ((CPP.bubble + CPP.exposed) / CPP.total)
CLAIMS = (
    Claim(
        "long: VPP over CPP, each at its best chunk",
        "throughput up to +7.3% (Qwen), +10.0% (DeepSeek), +4.1% (GLM)",
        faster(4.1, 10.0),
        lambda: paired("policies", "VPP", "CPP"),
        lambda machine: machine.long("vpp", "cpp"),
    ),
    *with_fixed_cost("VPP", "CPP", faster(4.1, 10.0)),
    Claim(
        "long: VPP over CPP, both in equal large chunks",
        "the same",
        faster(4.1, 10.0),
        lambda: paired("equal", "VPP", "CPP"),
    ),
    Claim(
        "long: VPP over DCPP",
        "+2.6% to +13.1% (DeepSeek), +3.7% to +8.7% (Qwen)",
        faster(2.6, 13.1),
        lambda: paired("policies", "VPP", "DCPP"),
        lambda machine: machine.long("vpp", "dcpp"),
    ),
    *with_fixed_cost("VPP", "DCPP", faster(2.6, 13.1)),
    Claim(
        "long: DCPP over CPP, up to 256K",
        "+1.6% to +3.6% (DeepSeek)",
        faster(1.6, 3.6),
        lambda: paired("policies", "DCPP", "CPP"),
        lambda machine: machine.long("dcpp", "cpp", SIZES[:3]),
    ),
    *with_fixed_cost("DCPP", "CPP", faster(1.6, 3.6)),
    Claim(
        "long: DCPP against CPP, 512K",
        "-4.4% (DeepSeek)",
        faster(-4.4),
        simulated=lambda machine: machine.long("dcpp", "cpp", SIZES[3:]),
        missing="not measured: too long for two cores",
    ),
    Claim(
        "mixed: VPP over CPP",
        "+9.0% (Qwen), +13.8% (DeepSeek), +1.3% to +1.6% (GLM)",
        faster(1.3, 13.8),
        lambda: paired("mixed", "VPP", "CPP", all_answered),
        lambda machine: machine.mixed("cpp"),
        faster(13.8),
    ),
    Claim(
        "mixed: VPP over DCPP",
        "+0.8% (Qwen), +6.7% (DeepSeek)",
        faster(0.8, 6.7),
        lambda: paired("mixed", "VPP", "DCPP", all_answered),
        lambda machine: machine.mixed("dcpp"),
        faster(6.7),
    ),
    Claim(
        "short: VPP loses to CPP on a small model",
        "up to -6.8% (Qwen)",
        faster(-6.8),
        short,
    ),
    Claim(
        "short: VPP gains over CPP on a large model, chunks of 4K",
        "+10.8% (DeepSeek)",
        faster(10.8),
        simulated=lambda machine: machine.short(),
        missing="not measured: too large for two cores",
    ),
    Claim(
        "ablation: latency, async over vanilla",
        "-3.13% (DeepSeek)",
        Range(1 - 0.0313, 1 - 0.0313),
        lambda: paired("ablation", "async", "vanilla", last_token),
        lambda machine: machine.ablation("async", makespan),
    ),
    Claim(
        "ablation: latency, async and packed over vanilla",
        "-6.89% (DeepSeek)",
        Range(1 - 0.0689, 1 - 0.0689),
        lambda: paired("ablation", "async, packed", "vanilla", last_token),
        lambda machine: machine.ablation("packed", makespan),
    ),
    Claim(
        "ablation: bubble ratio, async and packed over vanilla",
        "11.0% to 2.4%",
        Range(2.4 / 11.0, 2.4 / 11.0),
        lambda: paired("ablation", "async, packed", "vanilla", bubble),
        lambda machine: machine.ablation("packed", bubble_ratio),
    ),
    Claim(
        "decomposition: bubble and exposed communication, share of VPP over share of CPP",
        f"{(CPP.bubble + CPP.exposed) / CPP.total:.1%} to "
        f"{(VPP.bubble + VPP.exposed) / VPP.total:.1%} (DeepSeek, 512K)",
        Range(IDLE, IDLE),
        idle,
        lambda machine: machine.idle(),
    ),
    Claim(
        "decomposition: share of communication that is not overlapped, VPP over the other",
        "99.95% (DCPP) to 48.25%",
        Range(0.4825 / 0.9995, 0.4825 / 0.9995),
        exposed,
    ),
)


def row(claim: Claim, machine: PaperMachine) -> tuple[str, ...]:
    """One line."""
    found = claim.here()
    here = [claim.missing, ""]
    if found is not None:
        suite, ratio = found
        said = verdict(claim.published, Range(ratio.low, ratio.high))
        here = [f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] (`{suite}`)", said]
    there = [NOT_SIMULATED, ""]
    if claim.simulated is not None:
        span = claim.simulated(machine)
        same = f"{span.low:.3f}" == f"{span.high:.3f}"
        shown = f"{span.low:.3f}" if same else f"{span.low:.3f} to {span.high:.3f}"
        there = [shown, verdict(claim.there or claim.published, span)]
    return claim.what, claim.paper, *here, *there


def chunk_row(machine: PaperMachine) -> tuple[str, ...]:
    """The best chunk: neither the smallest nor the largest, and on a short prompt the smallest."""
    here = [NOT_MEASURED, ""]
    if exists("chunks"):
        result = load("chunks")
        arms = [arm for arm in result["arms"] if arm.startswith("VPP") and of(result, arm)]
        seconds = {
            result["arms"][arm]["chunk"]: statistics.median(map(ttft, of(result, arm)))
            for arm in arms
        }
        own = min(seconds, key=lambda size: seconds[size])
        ends = {min(seconds), max(seconds)}
        gains = [paired("chunks", f"VPP {own}", f"VPP {end}") for end in sorted(ends - {own})]
        clear = own not in ends and all(gain is not None and gain[1].high < 1 for gain in gains)
        apart = "; ".join(str(gain[1]) for gain in gains if gain is not None)
        tried = f"{own} of {', '.join(map(str, sorted(seconds)))} (`chunks`)"
        over = f"over the ends, not measured in turn: {apart}"
        here = [f"{tried}; {over}", Verdict.SIGN if clear else "not"]
    found = machine.best_chunks()
    published = {size: 8 * K if size == SIZES[0] else CHUNK for size in SIZES}
    said = Verdict.SIZE if found == published else "not"
    shown = ", ".join(f"{chunk // K}K at {size // K}K" for size, chunk in found.items())
    paper = "24K in most settings; at 64K the smaller the better (DeepSeek)"
    return "chunk size: the best for VPP", paper, *here, shown, said


def claims_page() -> str:
    """docs/claims.md."""
    machine = PaperMachine(calibrate_on(CHUNK), CHUNK)
    rows = [*(row(claim, machine) for claim in CLAIMS), chunk_row(machine)]
    head = ("claim", "paper", "here: time over time, 95% interval", "reproduced")
    return (
        "# The paper's claims\n\n"
        + NOTE
        + "Of arXiv 2608.26523, on this machine and on a simulation of the paper's.\n\n"
        + table((*head, "paper's machine, simulated", "reproduced"), rows)
        + "\n- Figures are ratios of times (or of shares), the first method over the second: below "
        "1 is a gain. A gain of x% in throughput is a ratio of 1 / (1 + x).\n"
        "- *In sign*: the whole interval lies on the published side of 1. *In size*: it also "
        f"touches what was published, give or take {SLACK}. *No difference shown*: it contains 1.\n"
        "- Here: small models on two cores ([results](results.md); the suite is named in "
        "brackets). A chunk may be small there at little cost, which is what a plain pipeline "
        "wants; on the paper's NPUs it may not.\n"
        "- The simulated machine is calibrated on the paper's CPP and DCPP columns for DeepSeek, "
        "whose stage boundaries cost far more than its links explain "
        "([validation](validation.md)). A V crosses twice as many. Its sends overlap in the "
        "published share.\n"
        "- Of mixed prompts the paper's lengths are used, not its prompts, which are not public.\n"
    )
