"""A cost model fitted to what was measured: least squares over the compute spans of timelines.

Owns the form and its statistics. An action of stage s with n layers on x new tokens takes
  action + n (layer + b x + a X + gamma G) + embed x [first stage] + head [last stage]   seconds,
X = sum of x (L + x/2) and G = sum of L over its chunks. No coefficient is negative.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vllm_vpp.core.batch import MicroBatch
from vllm_vpp.core.cost import QuadraticCost
from vllm_vpp.core.timeline import SpanKind, Timeline
from vllm_vpp.errors import InputError
from vllm_vpp.sim.splittable import LayerCosts

__all__ = ["NAMES", "Coefficient", "FittedCost", "Measured", "fit"]

NAMES = ("action", "layer", "b", "a", "gamma", "embed", "head")
_OUTLIER = 6.0  # spans further from the fit than so many typical deviations are left out once


class Measured(NamedTuple):
    """A timeline and the layers of each of its stages."""

    timeline: Timeline
    split: tuple[int, ...]


class Coefficient(NamedTuple):
    """Seconds (per unit of its column), with standard error; None where it was not fitted."""

    value: float
    error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedCost:
    """A cost model; `split` holds the layers of each stage, `notes` where it comes from."""

    coefficients: Mapping[str, Coefficient]
    split: tuple[int, ...]
    r_squared: float
    spans: int
    left_out: int = 0
    notes: Mapping[str, str] = field(default_factory=dict)

    def with_split(self, split: Sequence[int]) -> "FittedCost":
        """The same costs, cut otherwise."""
        return replace(self, split=tuple(split))

    def shifted(self, name: str, errors: float) -> "FittedCost":
        """One coefficient moved by so many standard errors, not below zero."""
        value, error = self.coefficients[name]
        moved = Coefficient(max(value + errors * (error or 0.0), 0.0), error)
        return replace(self, coefficients={**self.coefficients, name: moved})

    def time(self, stage: int, micro_batch: MicroBatch) -> float:
        """Seconds that `stage` computes on `micro_batch`."""
        return self.times(micro_batch)[stage]

    def times(self, micro_batch: MicroBatch) -> list[float]:
        """Seconds of every stage; 0 for an empty micro-batch."""
        if not micro_batch.chunks:
            return [0.0] * len(self.split)
        value = {name: c.value for name, c in self.coefficients.items()}
        tokens, square, prefix = _sums(micro_batch)
        layer = value["layer"] + value["b"] * tokens + value["a"] * square + value["gamma"] * prefix
        seconds = [value["action"] + n * layer for n in self.split]
        seconds[0] += value["embed"] * tokens
        seconds[-1] += value["head"]
        return seconds

    def layer_costs(self, micro_batch: MicroBatch) -> LayerCosts:
        """Seconds of each layer, of the embedding and of the head."""
        one = replace(self, split=(1,) * sum(self.split))
        value = {name: c.value for name, c in self.coefficients.items()}
        seconds = one.times(micro_batch)
        first = value["embed"] * micro_batch.tokens
        seconds[0] -= first
        seconds[-1] -= value["head"]
        layers = [s - value["action"] for s in seconds]
        return LayerCosts(layers, first, value["head"])

    def law(self) -> QuadraticCost:
        """Whole-model seconds of a chunk under the present split."""
        value = {name: c.value for name, c in self.coefficients.items()}
        layers = sum(self.split)
        return QuadraticCost(
            c0=value["action"] * len(self.split) + value["layer"] * layers + value["head"],
            b=value["b"] * layers + value["embed"],
            a=value["a"] * layers,
            gamma=value["gamma"] * layers,
        )

    def to_json(self) -> str:
        """Inverse of `from_data`."""
        return json.dumps({"kind": "fitted"} | asdict(self), indent=1)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "FittedCost":
        """Inverse of `to_json`, from parsed JSON. Raises InputError for anything else."""
        try:
            coefficients = {name: Coefficient(*data["coefficients"][name]) for name in NAMES}
            return cls(
                coefficients=coefficients,
                split=tuple(int(n) for n in data["split"]),
                r_squared=float(data["r_squared"]),
                spans=int(data["spans"]),
                left_out=int(data["left_out"]),
                notes=dict(data["notes"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"cost model: not a fitted one ({error!r}); give a file that calibrate wrote"
            ) from None


def _sums(micro_batch: MicroBatch) -> tuple[int, float, int]:
    tokens, square, prefix = 0, 0.0, 0
    for chunk in micro_batch.chunks:
        tokens += chunk.tokens
        square += chunk.tokens * (chunk.prefix + chunk.tokens / 2)
        prefix += chunk.prefix
    return tokens, square, prefix


def fit(measured: Sequence[Measured], *, gamma: bool = False) -> FittedCost:
    """Non-negative least squares, each span weighted by one over its duration's square root.

    Columns that the data cannot tell apart are left out (one split of equal stages cannot separate
    what an action costs from what its layers cost). Raises InputError with fewer than eight spans.
    """
    rows, seconds = _observations(measured)
    if len(seconds) < 8:
        raise InputError(f"timelines: {len(seconds)} compute spans; a fit needs at least 8")
    wanted = ["b", "a", "action", "layer", "gamma", "head", "embed"]
    if not gamma:
        wanted.remove("gamma")
    names = _independent(rows, wanted)
    kept = np.full(len(seconds), True)
    values, errors = _solve(rows, seconds, names)
    away = np.abs(_columns(rows, names) @ values - seconds) / np.sqrt(seconds)
    kept = away <= _OUTLIER * max(float(np.median(away)), 1e-9)
    if kept.sum() >= 8 and not kept.all():
        values, errors = _solve(rows[kept], seconds[kept], names)
    residual = seconds[kept] - _columns(rows[kept], names) @ values
    spread = seconds[kept] - seconds[kept].mean()
    found = {n: Coefficient(float(v), e) for n, v, e in zip(names, values, errors, strict=True)}
    return FittedCost(
        coefficients={name: found.get(name, Coefficient(0.0, None)) for name in NAMES},
        split=measured[0].split,
        r_squared=float(1 - residual @ residual / (spread @ spread)) if spread.any() else 1.0,
        spans=int(kept.sum()),
        left_out=int((~kept).sum()),
        notes=dict(measured[0].timeline.notes),
    )


def _observations(
    measured: Sequence[Measured],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A row of all columns per compute span, in the order of NAMES, and its seconds."""
    rows, seconds = [], []
    for timeline, split in measured:
        if len(split) != timeline.layout.stages:
            raise InputError(
                f"layers per stage {split}: the timeline has {timeline.layout.stages} stages; give"
                " one number each"
            )
        batches = {batch.index: batch for batch in timeline.micro_batches}
        for span in timeline.spans:
            batch = batches.get(span.micro_batch)
            if span.kind is not SpanKind.COMPUTE or batch is None or not batch.chunks:
                continue
            tokens, square, prefix = _sums(batch)
            n = split[span.stage]
            first, last = span.stage == 0, span.stage == len(split) - 1
            rows.append([1, n, n * tokens, n * square, n * prefix, first * tokens, last])
            seconds.append((span.end_ns - span.start_ns) * 1e-9)
    return np.array(rows, dtype=float).reshape(-1, len(NAMES)), np.array(seconds)


def _columns(rows: NDArray[np.float64], names: Sequence[str]) -> NDArray[np.float64]:
    return rows[:, [NAMES.index(name) for name in names]]


def _independent(rows: NDArray[np.float64], wanted: Sequence[str]) -> list[str]:
    """The longest prefix-greedy choice of columns that are linearly independent."""
    names: list[str] = []
    for name in wanted:
        columns = _columns(rows, [*names, name])
        norms = np.linalg.norm(columns, axis=0)
        if norms.all() and np.linalg.matrix_rank(columns / norms, tol=1e-6) == len(names) + 1:
            names.append(name)
    return names


def _solve(
    rows: NDArray[np.float64], seconds: NDArray[np.float64], names: Sequence[str]
) -> tuple[NDArray[np.float64], list[float | None]]:
    """Weighted values, none negative, with standard errors of those above zero."""
    from scipy.optimize import nnls

    weight = 1 / np.sqrt(np.maximum(seconds, 1e-9))
    columns = _columns(rows, names) * weight[:, None]
    scale = np.linalg.norm(columns, axis=0)
    values = nnls(columns / scale, seconds * weight)[0] / scale
    free = np.flatnonzero(values > 0)
    errors: list[float | None] = [None] * len(names)
    residual = seconds * weight - columns @ values
    degrees = len(seconds) - len(free)
    if degrees > 0 and len(free):
        active = columns[:, free] / scale[free]
        inverse = np.linalg.pinv(active.T @ active)
        sigma = np.sqrt(np.diagonal(inverse) * (residual @ residual) / degrees) / scale[free]
        for position, error in zip(free.tolist(), sigma.tolist(), strict=True):
            errors[position] = error
    return values, errors
