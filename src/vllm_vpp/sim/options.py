"""Ways to serve a prompt: every layout with its best chunking, and no pipeline at all.

Owns the problem as given and the options that come of it, each with its simulated times, where its
seconds go and what it needs in memory. Leaves the choice among them to `plan`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.core.cost import RowCost
from vllm_vpp.core.layout import Layout
from vllm_vpp.core.metrics import measure
from vllm_vpp.core.split import balanced_split
from vllm_vpp.sim.analytic import AnalyticCost, Device
from vllm_vpp.sim.links import Links
from vllm_vpp.sim.memory import RankMemory, largest_chunk, rank_memory
from vllm_vpp.sim.model import Model
from vllm_vpp.sim.search import Candidate, Family, Pipeline, best_of
from vllm_vpp.sim.simulate import Run
from vllm_vpp.sim.splittable import Splittable, law_of, whole_seconds

__all__ = [
    "Breakdown",
    "Option",
    "Problem",
    "Variant",
    "options_for",
    "pipeline_of",
    "split_for",
    "without_pipeline",
]

_SLACK = 0.01  # of a rank's load, given up for stages of even length
_EFFORT = {Family.RAMP: 0.6}  # the rest of a whole search finds 0.02% at a third of the time
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
    a micro-batch; `block`: tokens of a KV block; `starts`: layers on which a stage may start, None
    for all; `cached_tokens`: KV cache to hold at once, by default one prompt. `usable`: share of
    device memory for vLLM.
    """

    cost: Splittable
    ranks: int
    links: Links
    model: Model | None = None
    device: Device | None = None
    gap: float = 0.0
    limit: int = 1 << 40
    block: int = 16
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
    def of(cls, run: Run, cost: RowCost) -> "Breakdown":
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
        block=problem.block,
    )


def options_for(problem: Problem, layout: Layout, prompt: int) -> list[Option]:
    """The best chunking of each family on a layout; none where the model cannot be cut so."""
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
    found = [(f, best_of(pipeline, f, prompt, effort=_EFFORT.get(f, 1.0))) for f in families]
    return [_option(problem, pipeline, split, each) for each in found]


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


def without_pipeline(problem: Problem, prompt: int) -> list[Option]:
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
        for option in options_for(alone, Layout(1, 1), prompt)
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
        for option in options_for(wide, Layout(1, 1), prompt)
    ]
