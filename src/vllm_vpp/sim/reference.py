"""The reference table of docs/theory.md: what a rough simulation found, for tests and the page.

Owns the rows and the cost they are stated for: t = c0 + b x + a x (L + x/2) for the whole model, W
without overhead = 1, attention share s: a = 2 s / T^2, b = (1 - s) / T, c0 = b (overhead tokens); a
transfer takes 0.0005 / (T / 8192). Values are makespan over W/P.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from vllm_vpp.core.batch import MicroBatch
from vllm_vpp.core.chunking import make_policy
from vllm_vpp.core.cost import QuadraticCost, StageCost
from vllm_vpp.core.layout import Layout
from vllm_vpp.sim.links import Links
from vllm_vpp.sim.request import at_once
from vllm_vpp.sim.search import Family, Pipeline, best_of
from vllm_vpp.sim.simulate import Setup, simulate
from vllm_vpp.sim.splittable import LayerCosts

__all__ = ["ROWS", "Row"]

_K = 1024
_FIXED = tuple(c * _K for c in (2, 4, 8, 12, 16, 24, 32))
_ANY_DEPTH = 10**6


class Row(NamedTuple):
    """A line of the table; `ramps` for two, three and four sweeps."""

    ranks: int
    prompt: int
    share: float
    overhead: int
    cpp: float
    dcpp: float
    vpp: float
    ramps: tuple[float, float, float]

    @property
    def law(self) -> QuadraticCost:
        """Whole-model seconds, W without overhead = 1."""
        linear = (1 - self.share) / self.prompt
        return QuadraticCost(c0=linear * self.overhead, b=linear, a=2 * self.share / self.prompt**2)

    @property
    def links(self) -> Links:
        """Transfers that never queue."""
        return Links(latency=0.0005 / (self.prompt / 8192))

    def distance(self, layout: Layout, spec: dict[str, Any]) -> float:
        """Makespan over W/P of one chunking."""
        setup = Setup(
            layout=layout,
            cost=StageCost.by_layers(self.law, [1] * layout.stages),
            policy=make_policy(spec, law=self.law, ranks=self.ranks),
            links=self.links,
            block=1,
            depth=_ANY_DEPTH,
        )
        return simulate(at_once([self.prompt]), setup).makespan * self.ranks

    def best_fixed(self, layout: Layout) -> float:
        """Best fixed chunk: CPP on a linear layout, VPP on a V."""
        return min(self.distance(layout, {"policy": "fixed", "chunk": c}) for c in _FIXED)

    def best_equal_time(self) -> float:
        """DCPP: best initial chunk."""
        rule = {
            "policy": "equal-time",
            "smoothing": 1.0,
            "minimum": _K,
            "multiple": 128,
            "up": True,
        }
        sizes = (*_FIXED, 48 * _K, 64 * _K, 96 * _K)
        layout = Layout(self.ranks, 1)
        return min(self.distance(layout, rule | {"chunk": c}) for c in sizes)

    def best_ramp(self, sweeps: int) -> float:
        """What the planner's search finds."""
        layout = Layout(self.ranks, sweeps)
        cost = _Equal(StageCost.by_layers(self.law, [1] * layout.stages))
        pipeline = Pipeline(
            layout=layout, cost=cost, law=self.law, links=self.links, depth=_ANY_DEPTH
        )
        return best_of(pipeline, Family.RAMP, self.prompt).ttft * self.ranks


@dataclass(frozen=True, slots=True)
class _Equal:
    """Stages of equal cost, for a search that asks for layers."""

    cost: StageCost

    @property
    def split(self) -> tuple[int, ...]:
        return (1,) * len(self.cost.shares)

    def with_split(self, split: Sequence[int]) -> "_Equal":
        return _Equal(StageCost.by_layers(self.cost.model, split))

    def time(self, stage: int, micro_batch: MicroBatch) -> float:
        return self.cost.time(stage, micro_batch)

    def times(self, micro_batch: MicroBatch) -> Sequence[float]:
        return self.cost.times(micro_batch)

    def layer_costs(self, micro_batch: MicroBatch) -> LayerCosts:
        return LayerCosts(self.cost.times(micro_batch), 0.0, 0.0)


ROWS = (
    Row(2, 32 * _K, 0.30, 512, 1.256, 1.227, 1.224, (1.149, 1.103, 1.116)),
    Row(2, 128 * _K, 0.50, 512, 1.111, 1.093, 1.095, (1.049, 1.035, 1.037)),
    Row(2, 128 * _K, 0.50, 2048, 1.224, 1.191, 1.165, (1.119, 1.083, 1.093)),
    Row(2, 512 * _K, 0.80, 2048, 1.076, 1.057, 1.050, (1.027, 1.019, 1.020)),
    Row(4, 128 * _K, 0.50, 512, 1.201, 1.168, 1.163, (1.099, 1.080, 1.080)),
    Row(4, 256 * _K, 0.67, 2048, 1.245, 1.190, 1.184, (1.110, 1.091, 1.090)),
    Row(8, 128 * _K, 0.50, 512, 1.304, 1.257, 1.252, (1.181, 1.137, 1.146)),
    Row(8, 512 * _K, 0.80, 2048, 1.204, 1.156, 1.161, (1.098, 1.081, 1.080)),
    Row(8, 1024 * _K, 0.90, 512, 1.052, 1.039, 1.039, (1.023, 1.021, 1.017)),
)
