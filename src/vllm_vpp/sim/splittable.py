"""What the planner asks of a cost model: to be cut into stages in any way.

Owns the protocol, and the quadratic law that chunking policies plan with.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.core.cost import QuadraticCost, RowCost

__all__ = ["LayerCosts", "Splittable", "law_of", "whole_seconds"]


class LayerCosts(NamedTuple):
    """Seconds of each layer, of the embedding and of the head, for one micro-batch."""

    layers: list[float]
    first: float
    last: float


class Splittable(Protocol):
    """A cost model that knows layers."""

    @property
    def split(self) -> tuple[int, ...]:
        """Layers of each stage."""
        ...

    def with_split(self, split: Sequence[int]) -> "Splittable":
        """The same costs, cut otherwise."""
        ...

    def time(self, stage: int, micro_batch: MicroBatch) -> float:
        """Seconds that `stage` computes on `micro_batch`."""
        ...

    def times(self, micro_batch: MicroBatch) -> Sequence[float]:
        """Seconds of every stage."""
        ...

    def layer_costs(self, micro_batch: MicroBatch) -> LayerCosts:
        """Seconds of each layer and of the two ends."""
        ...


def whole_seconds(cost: RowCost, tokens: int, prefix: int) -> float:
    """Seconds of one chunk over all stages."""
    return sum(cost.times(MicroBatch(0, (Chunk("r", prefix, tokens),))))


def law_of(cost: Splittable, longest: int) -> QuadraticCost:
    """c0 + b x + a x (L + x/2), fitted to relative errors over chunks of prompts up to `longest`.

    Non-negative least squares on a grid; what is not quadratic (sparse attention) is averaged.
    """
    from scipy.optimize import nnls

    chunks = [max(1, round(longest * 2.0**-power)) for power in range(8)]
    points = [
        (x, prefix)
        for x in dict.fromkeys(chunks)
        for prefix in dict.fromkeys(
            min(round(longest * share), longest - x) for share in (0, 0.25, 0.5, 0.75, 1)
        )
    ]
    seconds = np.array([whole_seconds(cost, x, prefix) for x, prefix in points])
    grid = np.array([(1, x, x * (prefix + x / 2)) for x, prefix in points]) / seconds[:, None]
    scale = np.linalg.norm(grid, axis=0)
    c0, b, a = (nnls(grid / scale, np.ones(len(points)))[0] / scale).tolist()
    return QuadraticCost(c0=c0, b=max(b, 1e-15), a=a)
