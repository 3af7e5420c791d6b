"""Finds the best chunking for one prompt on one layout, by simulating few of many candidates.

Owns the candidates of each family of policies and the order in which they are tried: by a lower
bound of the makespan (docs/theory.md, 2, 3, 8), until the bound of the next one is no better than
what was found. What is best is then refined by changing one number at a time. Deterministic: the
effort is counted in actions, not in seconds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate, product
from typing import Any

from vllm_vpp.core.chunking import chunk_plan, make_policy
from vllm_vpp.core.cost import Law, RowCost
from vllm_vpp.core.layout import Layout
from vllm_vpp.sim.links import Links
from vllm_vpp.sim.request import at_once
from vllm_vpp.sim.simulate import Run, Setup, simulate

__all__ = ["Candidate", "Family", "Pipeline", "best_of", "lower_bound"]

_K = 1024
_SIZES = tuple(
    round(x * _K) for x in (0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
)
_GRAIN = 64  # tokens: chunk sizes that are refined are multiples of it
_MOST_CHUNKS = 640
_STARTS = 4
_ACTIONS = {"fixed": 30_000, "equal-time": 30_000, "ramp": 70_000}


class Family(StrEnum):
    """Chunking families that are searched."""

    FIXED = "fixed"
    EQUAL_TIME = "equal-time"
    RAMP = "ramp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Everything but the chunking. `limit`: most tokens of a micro-batch.

    With a law that is not quadratic, ramps are what the engine calls hybrid.
    """

    layout: Layout
    cost: RowCost
    law: Law
    links: Links
    gap: float = 0.0
    host: float = 0.0
    depth: int | None = None
    limit: int = 1 << 40
    block: int = 16

    def run(self, spec: dict[str, Any], prompts: Sequence[int]) -> Run:
        """Simulate prompts that arrive at once."""
        return simulate(at_once(prompts), self.setup(spec))

    def setup(self, spec: dict[str, Any]) -> Setup:
        """The configuration to simulate with this chunking."""
        return Setup(
            layout=self.layout,
            cost=self.cost,
            policy=make_policy(spec, law=self.law, ranks=self.layout.ranks),
            links=self.links,
            gap=self.gap,
            host=self.host,
            depth=self.depth,
            limit=self.limit,
            block=self.block,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A chunking, its chunks for the prompt searched, and its simulated TTFT in seconds."""

    spec: dict[str, Any]
    chunks: tuple[int, ...]
    ttft: float


def lower_bound(layout: Layout, times: Sequence[float]) -> float:
    """No order of actions is faster: seconds, from whole-model times of the chunks, equal stages.

    Theory (2) for a linear layout, (3) and (8) for folded ones; and no chunk passes the one before.
    """
    ranks, stages = layout.ranks, layout.stages
    work, first, last = sum(times), times[0], times[-1]
    if layout.sweeps == 1:
        return (work + (ranks - 1) * max(times)) / ranks
    ends = first + last if layout.sweeps % 2 == 0 else max(first, last)
    folded = work / ranks + (ranks - 1) / stages * ends
    through = max(first + (work - first) / stages, last + (work - last) / stages)
    return max(folded, through)


def best_of(pipeline: Pipeline, family: Family, prompt: int, *, effort: float = 1.0) -> Candidate:
    """The best chunking of a family for a prompt that has the pipeline to itself.

    `effort`: share of the usual number of actions to simulate.
    """
    search = _Search(pipeline, prompt, round(_ACTIONS[family] * effort))
    best = float("inf")
    for ranked in _by_bound(pipeline, prompt, _specs(family, prompt, pipeline)):
        found = search.try_one(ranked, best)
        best = min(best, found.ttft) if found else best
    search.refine()
    return search.best


def _specs(family: Family, prompt: int, pipeline: Pipeline) -> Iterator[dict[str, Any]]:
    sizes = [c for c in _SIZES if prompt / _MOST_CHUNKS <= c < prompt and c <= pipeline.limit]
    sizes = sizes or [min(prompt, pipeline.limit)]
    if family is Family.FIXED:
        yield from ({"policy": "fixed", "chunk": c} for c in [*sizes, min(prompt, pipeline.limit)])
    elif family is Family.EQUAL_TIME:
        for c in sizes:
            yield {"policy": "equal-time", "chunk": c}
            yield {
                "policy": "equal-time",
                "chunk": c,
                "smoothing": 1.0,
                "minimum": min(4 * _K, c),
                "up": True,
            }
    else:
        for peak, down, up in product(sizes, (0, 1, 2, 3, 4, 6, 8, 12, 16), (0, 1, 2, 3)):
            yield {"policy": "ramp", "peak": peak, "down": down, "up": up}


_Ranked = tuple[float, dict[str, Any], tuple[int, ...]]


def _by_bound(pipeline: Pipeline, prompt: int, specs: Iterator[dict[str, Any]]) -> list[_Ranked]:
    """Candidates with their chunks, the most promising first, equal chunk lists once."""
    found: dict[tuple[int, ...], _Ranked] = {}
    for spec in specs:
        ranked = _rank(pipeline, prompt, spec)
        if ranked is not None:
            found.setdefault(ranked[2], ranked)
    return sorted(found.values(), key=lambda r: (r[0], len(r[2]), r[2]))


def _rank(pipeline: Pipeline, prompt: int, spec: dict[str, Any]) -> _Ranked | None:
    law = pipeline.law
    policy = make_policy(spec, law=law, ranks=pipeline.layout.ranks)
    chunks = chunk_plan(policy, prompt, limit=pipeline.limit, block=pipeline.block)
    if len(chunks) > _MOST_CHUNKS and spec["policy"] != "fixed":
        return None
    times = [
        law.c0 + law.chunk_seconds(x, at)
        for x, at in zip(chunks, accumulate(chunks, initial=0), strict=False)
    ]
    return lower_bound(pipeline.layout, times), spec, chunks


@dataclass(slots=True)
class _Search:
    """What has been simulated, and the actions left to spend."""

    pipeline: Pipeline
    prompt: int
    actions: int
    effort: int = field(init=False)
    tried: dict[tuple[int, ...], Candidate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.effort = self.actions

    @property
    def best(self) -> Candidate:
        """The best so far; ties go to the shorter list."""
        return min(self.tried.values(), key=_quality)

    def try_one(self, ranked: _Ranked, limit: float) -> Candidate | None:
        """Simulate, unless it cannot beat `limit` or there is no effort left."""
        bound, spec, chunks = ranked
        if chunks in self.tried:
            return self.tried[chunks]
        needed = len(chunks) * self.pipeline.layout.stages
        if bound >= limit or (self.tried and needed > self.actions):
            return None
        self.actions -= needed
        run = self.pipeline.run({"policy": "list", "chunks": chunks}, [self.prompt])
        self.tried[chunks] = Candidate(spec=spec, chunks=chunks, ttft=run.ttft()[0])
        return self.tried[chunks]

    def refine(self) -> None:
        """Change one number of a good chunking at a time while that helps, from several of them."""
        starts: dict[int, Candidate] = {}
        for candidate in sorted(self.tried.values(), key=_quality):
            starts.setdefault(_size(candidate.spec), candidate)
        for start in list(starts.values())[:_STARTS]:
            self.actions = self.effort // _STARTS
            self._climb(start)

    def _climb(self, at: Candidate) -> None:
        moved = True
        while moved:
            moved = False
            for spec in _neighbours(at.spec, self.pipeline.limit):
                ranked = _rank(self.pipeline, self.prompt, spec)
                found = ranked and self.try_one(ranked, at.ttft)
                if found and found.ttft < at.ttft:
                    at, moved = found, True
                    break


def _quality(candidate: Candidate) -> tuple[float, int, tuple[int, ...]]:
    return candidate.ttft, len(candidate.chunks), candidate.chunks


def _size(spec: dict[str, Any]) -> int:
    """Tokens of the largest chunk that a policy would cut."""
    size: int = spec["peak" if spec["policy"] == "ramp" else "chunk"]
    return size


def _neighbours(spec: dict[str, Any], limit: int) -> Iterator[dict[str, Any]]:
    return _near_ramps(spec) if spec["policy"] == "ramp" else _near_sizes(spec, limit)


def _near_sizes(spec: dict[str, Any], limit: int) -> Iterator[dict[str, Any]]:
    for factor in (0.75, 1.25, 0.875, 1.125):
        size = min(max(_GRAIN, round(spec["chunk"] * factor / _GRAIN) * _GRAIN), limit)
        least = {"minimum": min(spec["minimum"], size)} if "minimum" in spec else {}
        yield spec | {"chunk": size} | least


def _near_ramps(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for factor in (0.9, 1.1, 0.8, 1.25, 0.95, 1.05, 0.98, 1.02):
        yield spec | {"peak": max(16, round(spec["peak"] * factor / 16) * 16)}
    for step in (-1, 1, -2, 2, 4):
        if spec["down"] + step >= 0:
            yield spec | {"down": spec["down"] + step}
    for multiple in (256, 1024):
        yield spec | {"multiple": multiple}
    for step in (-1, 1):
        if spec["up"] + step >= 0:
            yield spec | {"up": spec["up"] + step}
