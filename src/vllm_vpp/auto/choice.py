"""Which layout and chunking an engine should use for the prompts that it expects.

Owns the choice: for every length the best chunking of each layout, simulated; then the layout that
gains most over the plain pipeline among those that lose nowhere, neither for one prompt alone nor
for many short ones at once. Every further sweep has to gain clearly, since its stages cost a little
in each step of requests that decode; without a clear gain it is the plain pipeline.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_vpp.auto.question import Answer, Question
from vllm_vpp.core.cost import QuadraticCost, StageCost
from vllm_vpp.core.layout import Layout
from vllm_vpp.sim.hardware import read_hardware, shipped_hardware
from vllm_vpp.sim.links import FREE
from vllm_vpp.sim.search import Candidate, Family, Pipeline, best_of

__all__ = ["choose"]

_EFFORT = 0.1  # of a search for `vllm-vpp plan`: seconds, not minutes, for a dozen lengths
_CLEARLY = 0.01  # a gain below this is not worth another layout or a more elaborate chunking
_LOSS = 0.002  # what counts as slower
_SHORT = 8192  # tokens up to which prompts usually come in numbers
_AT_ONCE = 8
_SIZES = (512, 1024, 1536, 2048, 3072, 4096, 8192, 16_384)
_UNKNOWN = "cpu-core"  # profile of a device that none is known for


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """A layout with its best chunking for each length."""

    layout: Layout
    best: Mapping[int, Candidate]
    busy: int
    at_once: Mapping[int, float]

    @property
    def spec(self) -> dict[str, Any]:
        """All of it as one policy."""
        return _by_length(self.best, self.busy)


def choose(question: Question) -> Answer:
    """The answer to a question."""
    law = _in_seconds(question)
    plain = _plan(question, 1, law)
    plans = [plain if s == 1 else _plan(question, s, law) for s in question.sweeps]
    fixed = len(plans) == 1
    good = [plan for plan in plans if fixed or _never_slower(plan, plain)]
    best = max(good, key=lambda plan: _worth(plan, plain), default=plain)
    if not fixed and max(_gains(best, plain).values()) < 1 + _CLEARLY:
        best = plain
    return Answer(
        sweeps=best.layout.sweeps,
        chunking=_chunking(best, question),
        gains=_gains(best, plain),
        reason=_reason(best, plain, [p for p in plans if p not in good]),
    )


def _in_seconds(question: Question) -> QuadraticCost:
    """The law, scaled by the device's speed where it is in FLOPs."""
    law = question.law.cost()
    if question.device is None:
        return law
    name = question.device.lower()
    known = [n for n in shipped_hardware() if n.split("-")[-1] in name]
    device = read_hardware(max(known, key=len) if known else _UNKNOWN)
    rate = device.flops * device.matmul
    return QuadraticCost(c0=law.c0 / rate, b=law.b / rate, a=law.a / rate, gamma=law.gamma / rate)


def _plan(question: Question, sweeps: int, law: QuadraticCost) -> _Plan:
    layout = Layout(question.ranks, sweeps)
    pipeline = Pipeline(
        layout=layout,
        cost=StageCost.by_layers(law, question.splits[sweeps]),
        law=law,
        links=FREE,
        gap=question.gap,
        depth=layout.depth(),
        limit=question.limit,
        block=question.block,
    )
    useless = Family.RAMP if sweeps == 1 else Family.EQUAL_TIME  # theory 2; theory 6
    families = [f for f in map(Family, question.families) if f is not useless]
    families = families or [Family(name) for name in question.families]
    best = {length: _best(pipeline, families, length) for length in sorted(question.lengths)}
    busy = _busy(pipeline, list(best), best)
    spec = _by_length(best, busy)
    return _Plan(
        layout=layout,
        best=best,
        busy=busy,
        at_once={n: pipeline.run(spec, [n] * _AT_ONCE).makespan for n in best if n <= _SHORT},
    )


def _busy(pipeline: Pipeline, lengths: list[int], best: Mapping[int, Candidate]) -> int:
    """The fixed chunk with which several prompts at once finish soon, whatever their length."""
    some = [length for length in lengths if length <= _SHORT] or lengths[:1]
    sizes = [size for size in _SIZES if size < pipeline.limit] + [pipeline.limit]
    sizes = [size for size in sizes if size <= max(some) * _AT_ONCE]

    made: dict[int, list[float]] = {
        size: [pipeline.run(_by_length(best, size), [n] * _AT_ONCE).makespan for n in some]
        for size in sizes or [pipeline.limit]
    }
    least: list[float] = [min(each) for each in zip(*made.values(), strict=True)]

    def slowest(size: int) -> float:
        """Against the best size for each length, where that matters most."""
        return max(own / other for own, other in zip(made[size], least, strict=True))

    return min(made, key=slowest)


def _by_length(best: Mapping[int, Candidate], busy: int) -> dict[str, Any]:
    return {
        "policy": "by-length",
        "entries": [[length, candidate.spec] for length, candidate in best.items()],
        "busy": {"policy": "fixed", "chunk": busy},
    }


def _best(pipeline: Pipeline, families: list[Family], length: int) -> Candidate:
    """The best chunking; one that is simpler (earlier in the list) unless clearly beaten."""
    found = [best_of(pipeline, family, length, effort=_EFFORT) for family in families]
    least = min(candidate.ttft for candidate in found)
    return next(c for c in found if c.ttft <= least * (1 + _CLEARLY / 2))


def _gains(plan: _Plan, plain: _Plan) -> dict[int, float]:
    return {n: plain.best[n].ttft / plan.best[n].ttft for n in plan.best}


def _gain(plan: _Plan, plain: _Plan) -> float:
    """Mean of the logarithm of the gains, of prompts alone and of many at once."""
    many = [plain.at_once[n] / plan.at_once[n] for n in plan.at_once]
    gains = [*_gains(plan, plain).values(), *many]
    return sum(map(math.log, gains)) / len(gains)


def _worth(plan: _Plan, plain: _Plan) -> float:
    """The gain less what every sweep has to bring."""
    return _gain(plan, plain) - math.log1p(_CLEARLY) * (plan.layout.sweeps - 1)


def _never_slower(plan: _Plan, plain: _Plan) -> bool:
    alone = all(gain >= 1 - _LOSS for gain in _gains(plan, plain).values())
    many = all(plan.at_once[n] <= plain.at_once[n] * (1 + _LOSS) for n in plan.at_once)
    return alone and many


def _chunking(plan: _Plan, question: Question) -> dict[str, Any] | None:
    """A policy by length; None where it would do what vLLM does anyway."""
    specs = {n: c.spec for n, c in plan.best.items()}
    whole = all(
        s["policy"] == "fixed" and s["chunk"] >= min(n, question.limit) for n, s in specs.items()
    )
    if whole and plan.busy >= question.limit:
        return None
    return plan.spec


def _reason(best: _Plan, plain: _Plan, slower: list[_Plan]) -> str:
    gains = _gains(best, plain)
    length, gain = max(gains.items(), key=lambda item: item[1])
    shown = f"{length // 1024}K" if length % 1024 == 0 else str(length)
    if best is plain:
        text = "the plain pipeline: no other layout is predicted to be clearly faster"
    else:
        text = (
            f"prompts of {shown} tokens are predicted {1 - 1 / gain:.1%} sooner than on the plain"
            f" pipeline at its best"
        )
    if slower:
        text += f"; {', '.join(p.layout.name for p in slower)} would be slower somewhere"
    return text
