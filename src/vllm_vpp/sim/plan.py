"""Which layout and chunking to run, or whether to leave the pipeline alone.

Owns the question "would the V help me": for each prompt length the best option of every layout and
chunking family, where its seconds go, what it needs in memory, how sure the answer is, and one
recommendation that prefers the simpler option unless another is clearly better.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.core.layout import Layout
from vllm_vpp.core.metrics import measure
from vllm_vpp.core.split import balanced_split, even_split
from vllm_vpp.errors import InputError
from vllm_vpp.sim.analytic import AnalyticCost, Device
from vllm_vpp.sim.links import Links
from vllm_vpp.sim.memory import RankMemory, largest_chunk, rank_memory
from vllm_vpp.sim.model import Model
from vllm_vpp.sim.search import Candidate, Family, Pipeline, best_of
from vllm_vpp.sim.simulate import Run
from vllm_vpp.sim.splittable import Splittable, law_of, whole_seconds

__all__ = ["Breakdown", "Option", "Problem", "Report", "Variant", "plan_prompt", "split_for"]

CLEARLY = 0.01  # an option must be this much faster than a simpler one to be recommended
_SLACK = 0.01  # of a rank's load, given up for stages of even length
_TOGETHER = 4  # prompts at once, for throughput
_TYPICAL = 8192
_LEAST = 256  # tokens of the smallest chunk worth considering
_SWEEPS = (1, 2, 3, 4)
_USEFUL = {  # ramps gain nothing on a linear layout (theory 2), equal times nothing on a wave
    Family.FIXED: _SWEEPS,
    Family.EQUAL_TIME: (1, 2),
    Family.RAMP: (2, 3, 4),
}


@dataclass(frozen=True, slots=True)
class Variant:
    """The same problem under another assumption, for instance half the link bandwidth."""

    label: str
    cost: Splittable
    links: Links


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is given. Without `model` and `device` (costs were measured) memory is not checked.

    `cost` under any split; `gap`: seconds a rank needs before each action; `limit`: most tokens of
    a micro-batch; `starts`: layers on which a stage may start, None for all; `cached_tokens`: KV
    cache to hold at once, by default one prompt. `usable`: share of device memory for vLLM.
    """

    cost: Splittable
    ranks: int
    links: Links
    model: Model | None = None
    device: Device | None = None
    gap: float = 0.0
    limit: int = 1 << 40
    starts: frozenset[int] | None = None
    depth: int | None = None
    cached_tokens: int | None = None
    usable: float = 0.9
    across_nodes: bool = False
    sweeps: tuple[int, ...] = _SWEEPS
    variants: tuple[Variant, ...] = ()

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return sum(self.cost.split)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Where the seconds of a TTFT go, means over ranks; all but `imbalance` sum to the makespan.

    ideal: the prompt as one chunk, over the ranks. fragmentation: compute beyond that. fill, drain:
    before a rank's first and after its last action. waiting: for input. transfers: not hidden
    behind compute. host: between actions. imbalance: the busiest rank beyond the mean (shows as
    waiting).
    """

    ideal: float
    fragmentation: float
    fill: float
    drain: float
    waiting: float
    transfers: float
    host: float
    imbalance: float

    @classmethod
    def of(cls, run: Run, cost: Splittable) -> "Breakdown":
        """Of a single prompt's run."""
        metrics = measure(run.timeline())
        count = len(metrics.ranks)
        prompt = run.requests[0].request.prompt
        ideal = whole_seconds(cost, prompt, 0) / count

        def mean(name: str) -> float:
            return float(sum(getattr(rank, name) for rank in metrics.ranks) / count)

        return cls(
            ideal=ideal,
            fragmentation=mean("compute") - ideal,
            fill=mean("fill"),
            drain=mean("drain"),
            waiting=mean("stall"),
            transfers=mean("exposed"),
            host=mean("host"),
            imbalance=max(rank.compute for rank in metrics.ranks) - mean("compute"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to serve the prompt; `complexity` orders options from simple to elaborate.

    ways: devices per rank. ttft: seconds. throughput: prompt tokens per second when several prompts
    arrive at once.
    """

    name: str
    complexity: int
    ttft: float
    throughput: float
    pipeline: Pipeline
    split: tuple[int, ...]
    candidate: Candidate
    breakdown: Breakdown
    memory: tuple[RankMemory, ...] = ()
    fits: bool = True
    ways: int = 1

    @property
    def layout(self) -> Layout:
        """Layout; of one rank where there is no pipeline."""
        return self.pipeline.layout

    @property
    def depth(self) -> int:
        """Micro-batches in flight."""
        return self.pipeline.depth or self.layout.depth()


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
    reasons: tuple[str, ...] = field(default=())


def split_for(problem: Problem, layout: Layout, prompt: int) -> tuple[int, ...]:
    """Layers per stage that balance the ranks in the middle of the prompt."""
    tokens = min(prompt, _TYPICAL)
    costs = problem.cost.layer_costs(
        MicroBatch(0, (Chunk("r", max(prompt // 2 - tokens, 0), tokens),))
    )
    return balanced_split(
        layout,
        problem.layers,
        layer_costs=costs.layers,
        first_cost=costs.first,
        last_cost=costs.last,
        starts=problem.starts,
        slack=_SLACK,
    )


def plan_prompt(problem: Problem, prompt: int) -> Report:
    """All options for one prompt length. Raises InputError when none fits in memory."""
    if prompt < 1:
        raise InputError(f"prompt={prompt}: must be at least 1 token; correct it")
    options = [
        option
        for sweeps in problem.sweeps
        for option in _options(problem, Layout(problem.ranks, sweeps), prompt)
    ]
    options += _without_pipeline(problem, prompt)
    fitting = [option for option in options if option.fits]
    if not fitting:
        raise InputError(_does_not_fit(options, prompt))
    return _report(problem, prompt, fitting, [o for o in options if not o.fits])


def pipeline_of(problem: Problem, layout: Layout, split: Sequence[int], prompt: int) -> Pipeline:
    """The pipeline that simulates a layout and a split of this problem."""
    cost = problem.cost.with_split(split)
    return Pipeline(
        layout=layout,
        cost=cost,
        law=law_of(cost, prompt),
        links=problem.links,
        gap=problem.gap,
        depth=problem.depth or layout.depth(),
        limit=problem.limit,
    )


def _options(problem: Problem, layout: Layout, prompt: int) -> list[Option]:
    usable = problem.layers if problem.starts is None else len(problem.starts)
    if layout.stages > usable or (layout.ranks == 1 and layout.sweeps > 1):
        return []
    split = split_for(problem, layout, prompt)
    depth = problem.depth or layout.depth()
    memory = _memory(problem, layout, split, (prompt, _LEAST))
    limit, fits = problem.limit, all(rank.fits for rank in memory)
    if memory and fits and problem.model is not None and problem.device is not None:
        largest = largest_chunk(problem.device, problem.model, memory, depth)
        limit = max(min(limit, largest // _LEAST * _LEAST), _LEAST)
    pipeline = pipeline_of(replace(problem, limit=limit), layout, split, prompt)
    families = [f for f in Family if layout.sweeps in _USEFUL[f]]
    if layout.ranks == 1 or not fits:
        families = [Family.FIXED]
    return [
        _option(problem, pipeline, split, (family, best_of(pipeline, family, prompt)))
        for family in families
    ]


def _memory(
    problem: Problem, layout: Layout, split: Sequence[int], sizes: tuple[int, int]
) -> tuple[RankMemory, ...]:
    """Of a prompt and its largest chunk; empty where the model is unknown."""
    if problem.model is None or problem.device is None:
        return ()
    prompt, chunk = sizes
    return tuple(
        rank_memory(
            problem.model,
            problem.device,
            layout,
            split,
            cached_tokens=problem.cached_tokens or prompt,
            chunk=chunk,
            depth=problem.depth or layout.depth(),
            usable=problem.usable,
        )
    )


def _option(
    problem: Problem,
    pipeline: Pipeline,
    split: tuple[int, ...],
    found: tuple[Family, Candidate],
) -> Option:
    family, candidate = found
    layout, prompt = pipeline.layout, sum(candidate.chunks)
    alone = pipeline.run(candidate.spec, [prompt])
    together = pipeline.run(candidate.spec, [prompt] * _TOGETHER)
    memory = _memory(problem, layout, split, (prompt, max(candidate.chunks)))
    return Option(
        name=f"{layout.name} {family}",
        complexity=layout.sweeps * 10 + list(Family).index(family),
        ttft=candidate.ttft,
        throughput=_TOGETHER * prompt / together.makespan,
        split=split,
        candidate=candidate,
        breakdown=Breakdown.of(alone, pipeline.cost),
        memory=memory,
        fits=all(rank.fits for rank in memory),
        ways=problem.device.ways if problem.device is not None else 1,
        pipeline=pipeline,
    )


def _without_pipeline(problem: Problem, prompt: int) -> list[Option]:
    """One rank per replica: no fill, no drain; slow for one prompt, hard to beat for many.

    And, within a node and where the heads divide, one rank of all devices.
    """
    if problem.ranks == 1:
        return []
    alone = replace(problem, ranks=1, variants=())
    return _tensor_parallel(problem, prompt) + [
        replace(
            option,
            name=f"{problem.ranks} replicas",
            complexity=0,
            throughput=problem.ranks * option.throughput,
        )
        for option in _options(alone, Layout(1, 1), prompt)
    ]


def _tensor_parallel(problem: Problem, prompt: int) -> list[Option]:
    """All devices as a single rank."""
    if problem.device is None or problem.model is None or problem.across_nodes:
        return []
    device = Device(problem.device.hardware, problem.device.ways * problem.ranks)
    if problem.model.layers[0].attention.heads % device.ways:
        return []
    cost = AnalyticCost(problem.model, device, (problem.layers,))
    wide = replace(problem, cost=cost, device=device, ranks=1, variants=())
    return [
        replace(option, name=f"tensor parallel {device.ways}", complexity=1)
        for option in _options(wide, Layout(1, 1), prompt)
    ]


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
    good = [option for option in options if key(option) <= best * (1 + CLEARLY)]
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
        reasons.append(f"no other option is {CLEARLY:.0%} faster: keep the plain pipeline")
    reasons += [f"{option.name} does not fit in memory" for option in too_large]
    return reasons
