"""How many model layers each stage holds.

Owns the choice of the cuts between stages: contiguous, each stage at least one layer, the *ranks*
balanced first (what a rank owns over all sweeps sets the pace, theory 4), the stages even second.
Leaves to vLLM the loading of the layers (`VLLM_PP_LAYER_PARTITION`), and to cost models what a
layer costs.
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

from vllm_vpp.core.layout import Layout
from vllm_vpp.errors import ConfigError

__all__ = ["balanced_split", "even_split", "rank_loads"]

_STATES = 260  # combinations of cuts looked at between two ranks: a few milliseconds for each pair
_CENTRED = 0.01  # weight that keeps cuts near the even ones among equally even splits


def even_split(layers: int, stages: int) -> tuple[int, ...]:
    """Division by vLLM itself: equal, then one more each from the last but one backwards."""
    counts = [layers // stages] * stages
    for position in range(2, layers % stages + 2):
        counts[-position] += 1
    return tuple(counts)


def rank_loads(
    layout: Layout, split: Sequence[int], costs: Sequence[float], first: float, last: float
) -> tuple[float, ...]:
    """Cost of the layers, embedding and head that each rank owns."""
    loads = [0.0] * layout.ranks
    start = 0
    for stage, count in enumerate(split):
        loads[layout.owner(stage)] += sum(costs[start : start + count])
        start += count
    loads[layout.owner(0)] += first
    loads[layout.owner(layout.stages - 1)] += last
    return tuple(loads)


def balanced_split(
    layout: Layout,
    layers: int,
    *,
    layer_costs: Sequence[float] | None = None,
    first_cost: float = 0.0,
    last_cost: float = 0.0,
    starts: Collection[int] | None = None,
    slack: float = 0.0,
) -> tuple[int, ...]:
    """Layers per stage: smallest possible load of the busiest rank, then even stages.

    `layer_costs`: cost per layer, equal by default. `first_cost`, `last_cost`: embedding, and norm
    with head, in the same unit. `starts`: layers on which a stage may start, all by default.
    `slack`: share by which the busiest rank may exceed the least possible for more even stages.

    Exact where every cut has at most `_STATES ** (1 / sweeps)` possible positions (any linear
    layout; 16 for the V, 6 for three sweeps); else the search moves a window of that many until
    nothing improves. Raises ConfigError when there are too few layers or starts.
    """
    costs = [1.0] * layers if layer_costs is None else [float(cost) for cost in layer_costs]
    _check_input(layout, layers, costs, (first_cost, last_cost))
    allowed = sorted(set(range(1, layers)) & set(range(1, layers) if starts is None else starts))
    if len(allowed) < layout.stages - 1:
        raise ConfigError(
            f"layers={layers}, allowed starts={len(allowed) + 1}: {layout.name} on {layout.ranks}"
            f" ranks has {layout.stages} stages; use fewer ranks or sweeps"
        )
    if layout.ranks == 1:  # nothing to balance but the stages
        layout = Layout(layout.sweeps, 1)
    loads = np.concatenate([[0.0], np.cumsum(costs)])
    loads[1:] += first_cost
    loads[-1] += last_cost
    return _Search(layout, loads, allowed, slack).best()


def _check_input(
    layout: Layout, layers: int, costs: Sequence[float], ends: tuple[float, float]
) -> None:
    if layers < layout.stages:
        raise ConfigError(
            f"layers={layers}: {layout.name} on {layout.ranks} ranks has {layout.stages} stages of"
            " at least one layer; use fewer ranks or sweeps"
        )
    if len(costs) != layers:
        raise ConfigError(f"layer_costs: {len(costs)} values for {layers} layers; give one each")
    bad = [cost for cost in (*costs, *ends) if not 0 <= cost < float("inf")]
    if bad:
        raise ConfigError(f"layer cost {bad[0]}: must be a finite number of at least 0")


@dataclass
class _Search:
    """Dynamic programming over ranks; a state is the tuple of cuts between two neighbouring ranks.

    `loads[i]` is the load of the first i layers. Cut k is the first layer of stage k.
    """

    layout: Layout
    loads: NDArray[np.float64]
    allowed: list[int]
    slack: float
    halves: dict[tuple[int, int, int], tuple[float, int]] = field(default_factory=dict)

    @cached_property
    def even(self) -> list[float]:
        """Load before each stage if all stages were equal."""
        stages = self.layout.stages
        return [self.loads[-1] * stage / stages for stage in range(stages + 1)]

    @cached_property
    def frontiers(self) -> list[list[int]]:
        """For each pair of neighbouring ranks, the cuts between them, sweep by sweep."""
        ranks = self.layout.ranks
        return [
            [
                sweep * ranks + (ranks - 1 - rank if sweep % 2 else rank + 1)
                for sweep in range(self.layout.sweeps)
            ]
            for rank in range(ranks - 1)
        ]

    def best(self) -> tuple[int, ...]:
        """Layers per stage."""
        cuts = self._first_guess()
        score = (float("inf"), float("inf"))
        while True:
            found_score, found = self._improve(cuts)
            if found == cuts or not found_score < score:
                break
            cuts, score = found, found_score
        layers = len(self.loads) - 1
        return tuple(after - before for before, after in pairwise([0, *cuts, layers]))

    def _first_guess(self) -> list[int]:
        """Allowed cuts nearest to the even ones, strictly increasing."""
        count, wanted = len(self.allowed), self.layout.stages - 1
        at = -1
        cuts = []
        for stage in range(1, wanted + 1):
            near = bisect_left(self.loads[self.allowed].tolist(), self.even[stage])
            at = min(max(at + 1, near), count - 1 - (wanted - stage))
            cuts.append(self.allowed[at])
        return cuts

    def _window(self, stage: int, cut: int) -> list[int]:
        """Possible positions about a cut, later first: ties leave the last stage small.

        Before and after it the other cuts need room.
        """
        after = self.layout.stages - 1 - stage
        possible = self.allowed[stage - 1 : len(self.allowed) - after]
        width = max(3, int(_STATES ** (1 / self.layout.sweeps)))
        at = bisect_left(possible, cut)
        start = max(0, min(at - width // 2, len(possible) - width))
        return possible[start : start + width][::-1]

    def _improve(self, cuts: list[int]) -> tuple[tuple[float, float], list[int]]:
        """Best split with every cut in the window about its present position, and its score."""
        states = [
            np.array(
                list(product(*(self._window(k, cuts[k - 1]) for k in frontier))), dtype=np.int64
            )
            for frontier in self.frontiers
        ]
        if not states:  # a single stage
            return (float(self.loads[-1]), 0.0), cuts
        steps = [self._step(rank, states) for rank in range(self.layout.ranks)]
        worst = self._reduce([step[0] for step in steps], np.maximum)[0]
        limit = worst * (1 + max(self.slack, 1e-9))
        smooth = [np.where(load <= limit, uneven, np.inf) for load, uneven in steps]
        uneven, chosen = self._reduce(smooth, np.add)
        found = [0] * (self.layout.stages - 1)
        for frontier, table, index in zip(self.frontiers, states, chosen, strict=True):
            for k, cut in zip(frontier, table[index], strict=True):
                found[k - 1] = int(cut)
        for k in range(self.layout.ranks, self.layout.stages, self.layout.ranks):  # the turns
            low, high = ([0, *found, len(self.loads) - 1][i] for i in (k - 1, k + 1))
            found[k - 1] = self._turn(k, low, high)[1]
        return (worst, uneven), found

    def _reduce(
        self, steps: list[NDArray[np.float64]], combine: np.ufunc
    ) -> tuple[float, list[int]]:
        """Shortest path through matrices: its length, and the state between each two ranks."""
        value = steps[0][0]
        back = []
        for step in steps[1:]:
            through = combine(value[:, None], step)
            back.append(through.argmin(axis=0))
            value = through.min(axis=0)
        chosen = [0]
        for choice in reversed(back):
            chosen.append(int(choice[chosen[-1]]))
        return float(value[0]), chosen[:0:-1]

    def _step(
        self, rank: int, states: list[NDArray[np.int64]]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Load of a rank and unevenness of its stages, for each state before and after it.

        The first and the last rank have one (empty) state on their outer side: there the stages of
        two sweeps meet in a turn, and are cut in half.
        """
        ranks, sweeps = self.layout.ranks, self.layout.sweeps
        if 0 < rank < ranks - 1:
            before, after = states[rank - 1][:, None, :], states[rank][None, :, :]
            forward = np.arange(sweeps) % 2 == 0
            pieces = [
                (before[..., w], after[..., w]) if forward[w] else (after[..., w], before[..., w])
                for w in range(sweeps)
            ]
            load, uneven = self._pieces(pieces, [0] * sweeps)
            return load, uneven + self._off_centre(rank, states[rank])[None, :]
        table = states[0] if rank == 0 else states[-1]
        start = np.zeros(len(table), dtype=np.int64)
        end = start + len(self.loads) - 1
        columns = list(table.T)
        bounds = [start, *columns] if rank == 0 else columns
        bounds += [end] * (len(bounds) % 2)
        pieces = [(bounds[i], bounds[i + 1]) for i in range(0, len(bounds), 2)]
        turns = [2 * ranks * i + (ranks if rank else 0) for i in range(len(pieces))]
        load, uneven = self._pieces(pieces, turns)
        if rank == 0:
            return load[None, :], (uneven + self._off_centre(rank, table))[None, :]
        return load[:, None], uneven[:, None]

    def _pieces(
        self, pieces: list[tuple[NDArray[np.int64], NDArray[np.int64]]], turns: list[int]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Load and unevenness of runs of layers; one with a turn (its cut) holds two stages."""
        load: NDArray[np.float64] = np.zeros(1)
        uneven: NDArray[np.float64] = np.zeros(1)
        for (low, high), turn in zip(pieces, turns, strict=True):
            piece = np.where(high > low, self.loads[high] - self.loads[low], np.inf)
            load = load + piece
            inside = 0 < turn < self.layout.stages
            uneven = uneven + (self._turns(turn, low, high) if inside else piece**2)
        return np.where(np.isfinite(uneven), load, np.inf), uneven

    def _turns(
        self, turn: int, low: NDArray[np.int64], high: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        pairs = zip(low.tolist(), high.tolist(), strict=True)
        return np.array([self._turn(turn, a, b)[0] for a, b in pairs])

    def _turn(self, turn: int, low: int, high: int) -> tuple[float, int]:
        """Best cut of layers low .. high-1 in two: its unevenness (inf if impossible), the cut."""
        if (turn, low, high) not in self.halves:
            after, end = bisect_left(self.allowed, low + 1), bisect_left(self.allowed, high)
            inside = self.allowed[after:end]
            even = self.even[turn]
            options = [
                (
                    self._square(low, cut)
                    + self._square(cut, high)
                    + _CENTRED * float(self.loads[cut] - even) ** 2,
                    -cut,
                )
                for cut in inside
            ]
            uneven, cut = min(options, default=(float("inf"), 0))
            self.halves[turn, low, high] = uneven, -cut
        return self.halves[turn, low, high]

    def _square(self, low: int, high: int) -> float:
        return float((self.loads[high] - self.loads[low]) ** 2)

    def _off_centre(self, rank: int, table: NDArray[np.int64]) -> NDArray[np.float64]:
        even = np.array([self.even[k] for k in self.frontiers[rank]])
        off: NDArray[np.float64] = ((self.loads[table] - even) ** 2).sum(axis=1)
        return _CENTRED * off
