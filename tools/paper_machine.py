"""The paper's claims on the paper's machine, simulated (`vllm_vpp.sim.paper`).

Owns the runs behind the last columns of docs/claims.md. Nothing of the paper's VPP figures enters
but its overlap ratio, by which `Machine.seconds` interpolates between sends that block and sends
that do not.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from vllm_vpp.bench.claims import Range
from vllm_vpp.bench.workloads import paper_lengths
from vllm_vpp.core.metrics import measure
from vllm_vpp.sim.paper import BUDGETS, PROMPT, K, Machine, overlapped
from vllm_vpp.sim.request import Request, at_once
from vllm_vpp.sim.simulate import Run, simulate

SIZES = (64 * K, 128 * K, 256 * K, 512 * K)
_CLIENTS = 16
_ABLATION = {"vanilla": ("vanilla", False), "async": ("async", False), "packed": ("async", True)}


class PaperMachine:
    """Ratios of times on one calibrated machine."""

    def __init__(self, machine: Machine, chunk: int) -> None:
        self.machine, self.chunk = machine, chunk

    def long(self, ours: str, theirs: str, sizes: Sequence[int] = SIZES) -> Range:
        """One prompt, each method at its best budget, over prompt lengths."""
        best = self.machine.best
        return _range([best(ours, n)[0] / best(theirs, n)[0] for n in sizes])

    def mixed(self, theirs: str) -> Range:
        """500 prompts of the paper's lengths, 16 clients, each method at its best budget."""
        lengths = paper_lengths(500)
        requests = [
            Request(name=f"r{i}", prompt=n, after=f"r{i - _CLIENTS}" if i >= _CLIENTS else None)
            for i, n in enumerate(lengths)
        ]
        ours, other = (
            min(self._seconds(method, requests, chunk) for chunk in BUDGETS)
            for method in ("vpp", theirs)
        )
        return Range(ours / other, ours / other)

    def short(self, chunk: int = 4 * K) -> Range:
        """100 prompts at once of 4K, 8K and 16K tokens, in chunks of 4K."""
        found = []
        for size in (4 * K, 8 * K, 16 * K):
            requests = at_once([size] * 100)
            ours, theirs = (self._seconds(method, requests, chunk) for method in ("vpp", "cpp"))
            found.append(ours / theirs)
        return _range(found)

    def ablation(self, variant: str, value: Callable[[Run], float]) -> Range:
        """Three prompts of 256K tokens at once, chunks of 32K, against the vanilla order."""
        theirs = value(self._variant("vanilla", blocking=True))
        blocked, hidden = (value(self._variant(variant, blocking=b)) for b in (True, False))
        ours = overlapped(blocked, hidden)
        return Range(ours / theirs, ours / theirs)

    def idle(self) -> Range:
        """Share of the 512K run without compute, VPP over CPP."""
        shares = [
            measure(self.machine.run(m, PROMPT, self.chunk, blocking=b).timeline()).idle_ratio
            for m, b in (("cpp", True), ("vpp", False), ("vpp", True))
        ]
        ours = overlapped(shares[2], shares[1])
        return Range(ours / shares[0], ours / shares[0])

    def best_chunks(self) -> dict[int, int]:
        """Best budget of VPP by prompt length."""
        return {size: self.machine.best("vpp", size)[1] for size in SIZES}

    def _variant(self, name: str, *, blocking: bool) -> Run:
        order, packing = _ABLATION[name]
        setup = self.machine.setup("vpp", 32 * K, blocking=blocking)
        return simulate(at_once([256 * K] * 3), replace(setup, order=order, packing=packing))

    def _seconds(self, method: str, requests: Sequence[Request], chunk: int) -> float:
        """As `Machine.seconds`, for any requests."""

        def run(*, blocking: bool) -> float:
            setup = self.machine.setup(method, chunk, blocking=blocking)
            return simulate(requests, replace(setup, limit=chunk)).makespan

        blocked = run(blocking=True)
        if method != "vpp":
            return blocked
        return overlapped(blocked, run(blocking=False))


def _range(values: Sequence[float]) -> Range:
    return Range(min(values), max(values))


def makespan(run: Run) -> float:
    """Seconds."""
    return run.makespan


def bubble_ratio(run: Run) -> float:
    """Bubble over makespan."""
    return measure(run.timeline()).bubble_ratio
