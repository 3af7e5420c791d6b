"""Which layout and chunking to run, or whether to leave the pipeline alone.

Owns the choice: for each prompt length all options side by side, one recommendation that prefers
the simpler option unless another is clearly better, why, and how sure that is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from vllm_vpp.core.layout import Layout
from vllm_vpp.core.split import even_split
from vllm_vpp.errors import InputError
from vllm_vpp.sim.options import Option, Problem, Variant, options_for, without_pipeline

__all__ = ["Report", "plan_prompt"]

_CLEARLY = 0.01  # an option must be this much faster than a simpler one to be recommended


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Options for one prompt length, fastest first, and what to do."""

    prompt: int
    options: tuple[Option, ...]
    fastest: Option
    busiest: Option
    baseline: Option
    gain: float
    gain_range: tuple[float, float] | None
    reasons: tuple[str, ...]


def plan_prompt(problem: Problem, prompt: int) -> Report:
    """All options for one prompt length. Raises InputError when none fits in memory."""
    if prompt < 1:
        raise InputError(f"prompt={prompt}: must be at least 1 token; correct it")
    options = [
        option
        for sweeps in problem.sweeps
        for option in options_for(problem, Layout(problem.ranks, sweeps), prompt)
    ]
    options += without_pipeline(problem, prompt)
    fitting = [option for option in options if option.fits]
    if not fitting:
        raise InputError(_does_not_fit(options, prompt))
    return _report(problem, prompt, fitting, [o for o in options if not o.fits])


def _does_not_fit(options: Sequence[Option], prompt: int) -> str:
    worst = min(options, key=lambda o: max(r.needed for r in o.memory))
    rank = max(worst.memory, key=lambda r: r.needed)
    giga = 1e9
    return (
        f"prompt={prompt}: does not fit: rank {rank.rank} of {worst.name} needs"
        f" {rank.needed / giga:.0f} GB (weights {rank.weights / giga:.0f}, KV cache"
        f" {rank.cache / giga:.0f}, activations {rank.activations / giga:.0f}) of"
        f" {rank.available / giga:.0f} GB usable; use more ranks or devices per rank,"
        " shorter prompts or smaller weights"
    )


def _report(
    problem: Problem, prompt: int, options: list[Option], too_large: list[Option]
) -> Report:
    options.sort(key=lambda o: (o.ttft, o.complexity))
    fastest = _simplest(options, key=lambda o: o.ttft)
    busiest = _simplest(options, key=lambda o: 1 / o.throughput)
    plain = [o for o in options if o.complexity >= 10]
    baseline = min(plain or options, key=lambda o: (o.complexity, o.ttft))
    ratios = (
        []
        if fastest.complexity < 10
        else [
            _under(variant, baseline, prompt) / _under(variant, fastest, prompt) - 1
            for variant in problem.variants
        ]
    )
    gain = baseline.ttft / fastest.ttft - 1
    return Report(
        prompt=prompt,
        options=tuple(options),
        fastest=fastest,
        busiest=busiest,
        baseline=baseline,
        gain=gain,
        gain_range=(min(*ratios, gain), max(*ratios, gain)) if ratios else None,
        reasons=(
            *_reasons(fastest, baseline, too_large),
            *_against_even_split(problem, fastest, prompt),
        ),
    )


def _under(variant: Variant, option: Option, prompt: int) -> float:
    """TTFT of an option, its split and chunking kept, under another assumption."""
    cost = variant.cost.with_split(option.split)
    pipeline = replace(option.pipeline, cost=cost, links=variant.links)
    return pipeline.run({"policy": "list", "chunks": option.candidate.chunks}, [prompt]).ttft()[0]


def _simplest(options: Sequence[Option], key: Any) -> Option:
    """The simplest option that is not clearly worse than the best one."""
    best = min(key(option) for option in options)
    good = [option for option in options if key(option) <= best * (1 + _CLEARLY)]
    return min(good, key=lambda o: (o.complexity, key(o)))


def _against_even_split(problem: Problem, option: Option, prompt: int) -> list[str]:
    """What vLLM's own division of the layers would do to the chosen option."""
    layout = option.layout
    even = even_split(problem.layers, layout.stages)
    if even == option.split:
        return []
    label = ",".join(map(str, even))
    starts = set(accumulate(even[:-1]))
    if problem.starts is not None and not starts <= problem.starts:
        return [f"vLLM's even split {label} starts stages on layers that need another's indices"]
    pipeline = replace(option.pipeline, cost=problem.cost.with_split(even))
    chunks = {"policy": "list", "chunks": option.candidate.chunks}
    seconds = pipeline.run(chunks, [prompt]).ttft()[0]
    return [f"vLLM's even split {label} would take {seconds / option.ttft - 1:+.1%}"]


_PARTS = {
    "fragmentation": "chunks cost more than the whole prompt at once",
    "fill": "ranks wait for the first chunk",
    "drain": "ranks idle after their last chunk",
    "waiting": "ranks wait for input in between",
    "transfers": "transfers that no compute hides",
    "host": "dispatch between actions",
}


def _reasons(fastest: Option, baseline: Option, too_large: Sequence[Option]) -> list[str]:
    reasons = []
    here, there = fastest.breakdown, baseline.breakdown
    if fastest is not baseline:
        for name, meaning in _PARTS.items():
            saved = getattr(there, name) - getattr(here, name)
            if abs(saved) > 0.002 * baseline.ttft:
                verb = "saves" if saved > 0 else "costs"
                reasons.append(f"{verb} {abs(saved):.3g} s of {name} ({meaning})")
    if fastest is baseline:
        reasons.append(f"no other option is {_CLEARLY:.0%} faster: keep the plain pipeline")
    reasons += [f"{option.name} does not fit in memory" for option in too_large]
    return reasons
