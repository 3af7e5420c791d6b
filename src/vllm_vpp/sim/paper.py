"""The paper's machine, inferred from part of its figures, to predict the rest.

Owns the calibration on the CPP and DCPP columns of its 512K-token DeepSeek-V3.1 table (two ranks,
seconds per rank), and predictions for anything else there. No VPP figure enters. Used by the
validation page and its tests. Source: arXiv 2608.26523.

Unknowns and what determines them: c0 and F from the two computes and the ratio of steps, the
attention share from the number of DCPP chunks that equal times give, latency and bandwidth of a
(blocking) boundary from the two totals. The chunk size is not stated for this table: it is an
argument, 24K by default, which the paper calls best in most settings.
"""

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from vllm_vpp.core.chunking import chunk_plan, make_policy
from vllm_vpp.core.cost import QuadraticCost, StageCost
from vllm_vpp.core.layout import Layout
from vllm_vpp.sim.links import Links
from vllm_vpp.sim.request import at_once
from vllm_vpp.sim.simulate import Run, Setup, simulate

__all__ = [
    "BUDGETS",
    "CPP",
    "DCPP",
    "PROMPT",
    "VPP",
    "Column",
    "K",
    "Machine",
    "calibrate_on",
    "overlapped",
]

K = 1024
PROMPT = 512 * K
BUDGETS = (8 * K, 16 * K, 24 * K, 32 * K)
STEPS_RATIO = 4.4
_MINIMUM = 4096  # DCPP's minimum chunk
OVERLAP = 0.5175  # published for VPP-Async; only used where a prediction says so


def overlapped(blocked: float, hidden: float) -> float:
    """Of a run whose sends block and one whose sends do not, the mean by the published share."""
    return (1 - OVERLAP) * blocked + OVERLAP * hidden


class Column(NamedTuple):
    """Seconds of the paper's table."""

    compute: float
    bubble: float
    exposed: float
    total: float


CPP = Column(252.59, 38.64, 16.67, 307.90)
DCPP = Column(279.07, 20.47, 22.68, 322.22)
VPP = Column(250.84, 0.39, 30.63, 281.86)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Whole-model law of a chunk, and a boundary: `latency` + `per_token` x seconds."""

    law: QuadraticCost
    share: float
    latency: float
    per_token: float

    def setup(self, method: str, chunk: int, *, blocking: bool) -> Setup:
        """cpp, dcpp or vpp (async order) on two ranks."""
        layout = Layout(2, 2 if method == "vpp" else 1)
        return Setup(
            layout=layout,
            cost=StageCost.by_layers(self.law, [1] * layout.stages),
            policy=make_policy(_chunking(method, chunk), law=self.law, ranks=2),
            order="async" if method == "vpp" else "greedy",
            block=128,
            links=Links(
                latency=self.latency,
                token_bytes=1.0,
                bandwidth=1 / self.per_token if self.per_token else float("inf"),
                channels=1,
                blocking=blocking,
            ),
        )

    def run(self, method: str, prompt: int, chunk: int, *, blocking: bool) -> Run:
        """Simulate one prompt."""
        return simulate(at_once([prompt]), self.setup(method, chunk, blocking=blocking))

    def seconds(self, method: str, prompt: int, chunk: int) -> float:
        """Makespan; sends block for cpp and dcpp, and for vpp in the share not overlapped."""
        blocked = self.run(method, prompt, chunk, blocking=True).makespan
        if method != "vpp":
            return blocked
        hidden = self.run(method, prompt, chunk, blocking=False).makespan
        return overlapped(blocked, hidden)

    def best(self, method: str, prompt: int) -> tuple[float, int]:
        """Seconds and chunk budget of the best budget, as the paper reports."""
        return min((self.seconds(method, prompt, chunk), chunk) for chunk in BUDGETS)


def _chunking(method: str, chunk: int) -> dict[str, object]:
    if method != "dcpp":
        return {"policy": "fixed", "chunk": chunk}
    return {
        "policy": "equal-time",
        "chunk": chunk,
        "smoothing": 1.0,
        "minimum": _MINIMUM,
        "up": True,
    }


def calibrate_on(chunk: int) -> Machine:
    """The machine that the CPP and DCPP columns describe, if they used this chunk size."""
    from scipy.optimize import least_squares

    steps = ceil(PROMPT / chunk)
    c0 = 2 * (DCPP.compute - CPP.compute) / ((STEPS_RATIO - 1) * steps)
    work = 2 * CPP.compute - steps * c0
    share = min(
        (percent / 200 for percent in range(60, 200)),
        key=lambda s: abs(_dcpp_steps(_law(c0, work, s), chunk) - STEPS_RATIO * steps),
    )
    law = _law(c0, work, share)

    def misses(unknown: list[float]) -> list[float]:
        latency, whole = map(abs, unknown)
        tried = Machine(law=law, share=share, latency=latency, per_token=whole / PROMPT)
        return [
            tried.run(method, PROMPT, chunk, blocking=True).makespan - column.total
            for method, column in (("cpp", CPP), ("dcpp", DCPP))
        ]

    found = least_squares(misses, [0.1, 15.0], x_scale=[0.05, 10.0], diff_step=1e-3).x
    latency, whole = (abs(float(value)) for value in found)
    return Machine(law=law, share=share, latency=latency, per_token=whole / PROMPT)


def _law(c0: float, work: float, share: float) -> QuadraticCost:
    return QuadraticCost(c0=c0, b=(1 - share) * work / PROMPT, a=2 * share * work / PROMPT**2)


def _dcpp_steps(law: QuadraticCost, chunk: int) -> int:
    policy = make_policy(_chunking("dcpp", chunk), law=law, ranks=2)
    return len(chunk_plan(policy, PROMPT, limit=1 << 40, block=128))
