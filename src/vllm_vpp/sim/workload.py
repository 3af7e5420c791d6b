"""How options fare under a whole workload rather than a single prompt.

Owns running a trace through chosen options and the figures to compare.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vllm_vpp.sim.plan import Option
from vllm_vpp.sim.request import Request
from vllm_vpp.sim.simulate import simulate

__all__ = ["WorkloadResult", "run_workload"]

_ACTIONS = 400_000  # about two seconds of simulation


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


def run_workload(option: Option, requests: Sequence[Request]) -> WorkloadResult:
    """Simulate as many requests, from the first, as fit into the effort."""
    largest = max(option.candidate.chunks)
    actions, taken = 0, 0
    for request in requests:
        steps = -(-request.prompt // largest) + request.output
        actions += steps * option.layout.stages
        if taken and actions > _ACTIONS:
            break
        taken += 1
    run = simulate(requests[:taken], option.pipeline.setup(option.candidate.spec))
    ttft, tpot = np.array(run.ttft()), run.tpot()
    tokens = sum(r.request.prompt - r.request.cached + r.request.output for r in run.requests)
    return WorkloadResult(
        name=option.name,
        requests=taken,
        mean_ttft=float(ttft.mean()),
        p50_ttft=float(np.quantile(ttft, 0.5)),
        p99_ttft=float(np.quantile(ttft, 0.99)),
        mean_tpot=float(np.mean(tpot)) if tpot else None,
        throughput=tokens / run.makespan,
    )
