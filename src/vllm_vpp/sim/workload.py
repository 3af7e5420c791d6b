"""How options fare under a whole workload rather than a single prompt.

Owns running a trace through chosen options and the figures to compare.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vllm_vpp.sim.options import Option
from vllm_vpp.sim.request import Request
from vllm_vpp.sim.simulate import simulate

__all__ = ["WorkloadResult", "affordable", "run_workload"]

_ACTIONS = 300_000  # about two seconds of simulation
_SHARED = 8  # decode steps that share a micro-batch, as a rough guess


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadResult:
    """Seconds, and tokens (prompt and output) per second."""

    name: str
    requests: int
    mean_ttft: float
    p50_ttft: float
    p99_ttft: float
    mean_tpot: float | None
    throughput: float


def affordable(options: Sequence[Option], requests: Sequence[Request]) -> Sequence[Request]:
    """As many requests, from the first, as every option can simulate within the effort."""
    stages = max(option.layout.stages for option in options)
    chunk = min(max(option.candidate.chunks) for option in options)
    actions, taken = 0, 0
    for request in requests:
        actions += (-(-request.prompt // chunk) + request.output // _SHARED) * stages
        if taken and actions > _ACTIONS:
            break
        taken += 1
    return requests[:taken]


def run_workload(option: Option, requests: Sequence[Request]) -> WorkloadResult:
    """Simulate all requests."""
    run = simulate(requests, option.pipeline.setup(option.candidate.spec))
    ttft, tpot = np.array(run.ttft()), run.tpot()
    tokens = sum(r.request.prompt - r.request.cached + r.request.output for r in run.requests)
    return WorkloadResult(
        name=option.name,
        requests=len(requests),
        mean_ttft=float(ttft.mean()),
        p50_ttft=float(np.quantile(ttft, 0.5)),
        p99_ttft=float(np.quantile(ttft, 0.99)),
        mean_tpot=float(np.mean(tpot)) if tpot else None,
        throughput=tokens / run.makespan,
    )
