"""A cost law fitted while serving, from how long micro-batches took.

Owns which observations are kept and the fit: non-negative least squares on relative errors, with
outliers left out once. Reads no clock; whoever runs the engine adds observations and decides when
to fit. A fit that is not possible gives None, never an error.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.core.cost import Law, QuadraticCost
from vllm_vpp.core.marginal import Knot, MarginalCost

__all__ = ["Observation", "OnlineCost"]

_KEPT = 256
_LEAST = 8  # observations for a fit
_LEAST_TOKENS = 16  # of a micro-batch worth observing: decode steps say nothing of prefill
_OUTLIER = 6.0  # typical deviations
_RECENT = 5  # micro-batches whose median error tells a drift from noise
_KNOTS = 8  # twice as far each: windows and top-k bend early
_PRIOR = 0.3  # weight of a made-up chunk against an observed one
_SHORT = 256  # tokens of a chunk whose cost is hardly attention
_LEAST_SHARE = 0.05  # of what the prior says that a token costs: noise may hide it, it is never 0
_SMOOTH = 0.03  # weight of bends of the marginal cost, against relative errors


class Observation(NamedTuple):
    """Whole-model seconds that a micro-batch took."""

    micro_batch: MicroBatch
    seconds: float


@dataclass(slots=True)
class OnlineCost:
    """The newest observations; `skip` more are dropped first, as they pay for warming up."""

    skip: int = 2
    kept: deque[Observation] = field(default_factory=lambda: deque(maxlen=_KEPT))
    added: int = 0

    def add(self, micro_batch: MicroBatch, seconds: float) -> None:
        """Keep an observation of prefill; others are ignored."""
        if micro_batch.tokens < _LEAST_TOKENS or seconds <= 0:
            return
        if self.skip:
            self.skip -= 1
            return
        self.kept.append(Observation(micro_batch, seconds))
        self.added += 1

    def misfit(self, law: Law) -> float:
        """How far the newest micro-batches are from the law's *shape*: median relative error.

        A machine that is slower throughout changes no plan, so the law is scaled to all that is
        kept first. 0 with too few observations.
        """
        ratios = self._ratios(law)
        if len(ratios) < _LEAST:
            return 0.0
        scale = float(np.median(ratios))
        return float(np.median(np.abs(ratios[-_RECENT:] / scale - 1)))

    def _ratios(self, law: Law) -> NDArray[np.float64]:
        return np.array([o.seconds / law.seconds(o.micro_batch) for o in self.kept])

    def scale(self, law: Law) -> float | None:
        """How many times longer than the law says micro-batches take; None with too few of them."""
        ratios = self._ratios(law)
        return float(np.median(ratios)) if len(ratios) >= _LEAST else None

    def quadratic(self, prior: Law, horizon: int) -> QuadraticCost | None:
        """The law c0 + b x + a x (L + x/2), or None where the observations do not tell.

        `prior`, scaled to what was observed, weighs in with a few made-up chunks of prompts of up
        to `horizon` tokens: where only short prompts were seen they keep the fit from guessing.
        """
        if len(self.kept) < _LEAST:
            return None
        scale = float(np.median(self._ratios(prior)))
        made_up = [
            MicroBatch(0, (Chunk("", round(horizon * share), tokens),))
            for share in (0.0, 0.5, 1.0)
            for tokens in (_SHORT, 4096)
        ]
        batches = [o.micro_batch for o in self.kept]
        columns = [[1.0, *_sums(batch)] for batch in batches]
        extra = [
            [v * _PRIOR / (prior.seconds(b) * scale) for v in (1.0, *_sums(b))] for b in made_up
        ]
        seconds = [o.seconds for o in self.kept]
        token = prior.chunk_seconds(_SHORT, 0) / _SHORT * scale * _LEAST_SHARE
        values = _solve(columns, seconds, extra, [_PRIOR] * len(extra), [0.0, token, 0.0])
        if values is None or values[1] <= 0:
            return None
        return QuadraticCost(c0=float(values[0]), b=float(values[1]), a=float(values[2]))

    def marginal(self) -> MarginalCost | None:
        """A law of any shape up to the longest prefix seen, or None; level beyond it.

        The marginal cost is a sum of hat functions about the knots, so that the fit is linear.
        """
        longest = max((_end(o.micro_batch) for o in self.kept), default=0)
        if len(self.kept) < _LEAST or longest <= 0:
            return None
        places = [0.0, *(longest / 2.0**k for k in reversed(range(_KNOTS - 1)))]
        columns = [[1.0, *_hats(o.micro_batch, places)] for o in self.kept]
        seconds = [o.seconds for o in self.kept]
        per_token = sum(seconds) / sum(o.micro_batch.tokens for o in self.kept)
        weight = _SMOOTH * len(seconds) ** 0.5 / per_token
        bends = [[value * weight for value in bend] for bend in _bends(places)]
        values = _solve(columns, seconds, bends, [0.0] * len(bends))
        if values is None:
            return None
        least = 1e-3 * float(max(values[1:]))
        if least <= 0:
            return None
        knots = zip(places, values[1:].tolist(), strict=True)
        return MarginalCost(
            c0=float(values[0]), knots=tuple(Knot(place, max(g, least)) for place, g in knots)
        )


def _bends(places: Sequence[float]) -> list[list[float]]:
    """A row per inner place: by how much the marginal cost turns there, over the gap before it."""
    rows = []
    for k in range(1, len(places) - 1):
        share = (places[k] - places[k - 1]) / (places[k + 1] - places[k])
        rows.append([0.0] * k + [1.0, -1.0 - share, share] + [0.0] * (len(places) - 2 - k))
    return rows


def _end(micro_batch: MicroBatch) -> int:
    return max((c.prefix + c.tokens for c in micro_batch.chunks), default=0)


def _sums(micro_batch: MicroBatch) -> tuple[float, float]:
    """Tokens, and the sum of x (L + x/2)."""
    square = sum(c.tokens * (c.prefix + c.tokens / 2) for c in micro_batch.chunks)
    return float(micro_batch.tokens), float(square)


def _hats(micro_batch: MicroBatch, places: Sequence[float]) -> list[float]:
    """Integral of each hat function over the tokens of a micro-batch."""
    return [
        sum(
            _hat_until(c.prefix + c.tokens, places, k) - _hat_until(c.prefix, places, k)
            for c in micro_batch.chunks
        )
        for k in range(len(places))
    ]


def _hat_until(tokens: float, places: Sequence[float], k: int) -> float:
    """Integral from 0 of the function that is 1 at place k, 0 at the others, straight between."""
    total = 0.0
    for j, (low, high) in enumerate(pairwise(places)):
        x = min(max(tokens - low, 0.0), high - low)
        rising = x * x / (2 * (high - low))
        if j == k:
            total += x - rising
        elif j + 1 == k:
            total += rising
    return total


def _solve(
    columns: Sequence[Sequence[float]],
    seconds: Sequence[float],
    extra: Sequence[Sequence[float]],
    wanted: Sequence[float],
    least: Sequence[float] | float = 0.0,
) -> NDArray[np.float64] | None:
    """Values of at `least` that minimise relative errors, with weighted `extra` rows to heed.

    None with too few observations, or where the solver finds nothing.
    """
    if len(seconds) < _LEAST:
        return None
    rows = np.array(columns) / np.array(seconds)[:, None]
    more, goal = np.array(extra, dtype=float).reshape(-1, rows.shape[1]), np.array(wanted)
    floor = np.broadcast_to(np.array(least, dtype=float), rows.shape[1:])
    try:
        values = _bounded(rows, more, goal, floor)
        away = np.abs(rows @ values - 1)
        good = away <= _OUTLIER * max(float(np.median(away)), 1e-6)
        if good.sum() >= _LEAST and not good.all():
            values = _bounded(rows[good], more, goal, floor)
    except (RuntimeError, ValueError):  # no convergence, or not finite
        return None
    return values if np.isfinite(values).all() else None


def _bounded(
    rows: NDArray[np.float64],
    more: NDArray[np.float64],
    goal: NDArray[np.float64],
    floor: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Least squares of `rows` to 1 and `more` to `goal`, no value below its floor."""
    from scipy.optimize import nnls

    matrix = np.concatenate([rows, more])
    aim = np.concatenate([np.ones(len(rows)), goal]) - matrix @ floor
    scale = np.maximum(np.linalg.norm(matrix, axis=0), 1e-300)
    values: NDArray[np.float64] = floor + nnls(matrix / scale, aim)[0] / scale
    return values
