"""A cost model that interpolates what was measured on a grid of (chunk, prefix).

Owns the table and its file form: for each kind of layer the seconds of one layer, and the head.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np

from vllm_vpp.core.batch import MicroBatch
from vllm_vpp.errors import InputError
from vllm_vpp.sim.splittable import LayerCosts

__all__ = ["TableCost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCost:
    """`seconds[kind][i][j]`: one layer on a chunk of chunks[i] tokens after prefixes[j].

    Linear between grid points, and beyond the prefixes. `layers[l]`: kind of layer l. `head`: of
    norm and head, per micro-batch. `split`: layers per stage. `notes`: where it comes from.
    """

    chunks: tuple[int, ...]
    prefixes: tuple[int, ...]
    seconds: tuple[tuple[tuple[float, ...], ...], ...]
    layers: tuple[int, ...]
    split: tuple[int, ...]
    head: float = 0.0
    notes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("chunks", "prefixes"):
            grid = getattr(self, name)
            if not grid or list(grid) != sorted(set(grid)) or grid[0] < (name == "chunks"):
                raise InputError(f"table: {name}={grid}: must rise strictly; measure again")
        shape = (len(self.chunks), len(self.prefixes))
        values = [np.array(kind, dtype=float) for kind in self.seconds]
        if any(v.shape != shape or not np.isfinite(v).all() or (v < 0).any() for v in values):
            raise InputError(f"table: seconds: must be {shape} numbers of at least 0 per kind")
        if not all(0 <= kind < len(values) for kind in self.layers):
            raise InputError("table: layers: names a kind that has no seconds; measure again")
        if sum(self.split) != len(self.layers) or min(self.split, default=0) < 1:
            raise InputError(f"table: split={self.split}: must sum to {len(self.layers)} layers")

    def with_split(self, split: Sequence[int]) -> "TableCost":
        """The same costs, cut otherwise."""
        return replace(self, split=tuple(split))

    def time(self, stage: int, micro_batch: MicroBatch) -> float:
        """Seconds that `stage` computes on `micro_batch`."""
        return self.times(micro_batch)[stage]

    def times(self, micro_batch: MicroBatch) -> list[float]:
        """Seconds of every stage; 0 for an empty micro-batch."""
        if not micro_batch.chunks:
            return [0.0] * len(self.split)
        kinds = [
            sum(self.layer_seconds(kind, c.tokens, c.prefix) for c in micro_batch.chunks)
            for kind in range(len(self.seconds))
        ]
        ends = list(accumulate(self.split))
        stages = [
            sum(kinds[kind] * n for kind, n in Counter(self.layers[a:b]).items())
            for a, b in zip([0, *ends], ends, strict=False)
        ]
        stages[-1] += self.head
        return stages

    def layer_costs(self, micro_batch: MicroBatch) -> LayerCosts:
        """Seconds of each layer, of the embedding (none) and of the head."""
        kinds = [
            sum(self.layer_seconds(kind, c.tokens, c.prefix) for c in micro_batch.chunks)
            for kind in range(len(self.seconds))
        ]
        return LayerCosts([kinds[kind] for kind in self.layers], 0.0, self.head)

    def layer_seconds(self, kind: int, tokens: int, prefix: int) -> float:
        """Seconds of one layer, interpolated; a chunk beyond the grid counts as several."""
        largest = self.chunks[-1]
        pieces, rest = divmod(tokens, largest)
        if pieces and (pieces > 1 or rest):
            ends = range(prefix, prefix + pieces * largest, largest)
            whole = sum(self._cell(kind, largest, at) for at in ends)
            return whole + (self._cell(kind, rest, prefix + pieces * largest) if rest else 0.0)
        return self._cell(kind, tokens, prefix)

    def _cell(self, kind: int, tokens: int, prefix: int) -> float:
        table = self.seconds[kind]
        i, across = _place(self.chunks, tokens)
        j, along = _place(self.prefixes, prefix)
        low = _mix(table[i], j, along)
        value = low if across is None else low + across * (_mix(table[i + 1], j, along) - low)
        return max(value, 0.0)

    def to_json(self) -> str:
        """Inverse of `from_data`."""
        return json.dumps({"kind": "table"} | asdict(self))

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "TableCost":
        """Inverse of `to_json`, from parsed JSON. Raises InputError for anything else."""
        try:
            return cls(
                chunks=tuple(data["chunks"]),
                prefixes=tuple(data["prefixes"]),
                seconds=tuple(tuple(map(tuple, kind)) for kind in data["seconds"]),
                layers=tuple(data["layers"]),
                split=tuple(data["split"]),
                head=float(data["head"]),
                notes=dict(data["notes"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"cost model: not a table ({error!r}); give a file that calibrate wrote"
            ) from None


def _place(grid: Sequence[int], value: float) -> tuple[int, float | None]:
    """Index of the cell, and position in it (outside 0..1 beyond the grid; None with one point)."""
    if len(grid) == 1:
        return 0, None
    i = min(max(int(np.searchsorted(grid, value)) - 1, 0), len(grid) - 2)
    return i, (value - grid[i]) / (grid[i + 1] - grid[i])


def _mix(row: Sequence[float], j: int, along: float | None) -> float:
    return row[j] if along is None else row[j] + along * (row[j + 1] - row[j])
