"""What the user left open: layout, chunking and layers per stage, settled before anything starts.

Owns the question to the planner, asked only for `"layout": "auto"` or for a ramp without sizes, and
the line in the log that says what was chosen and why.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from vllm.config import VllmConfig

from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.core.cost import QuadraticCost
from vllm_vpp.core.itl import ItlBound
from vllm_vpp.core.layout import Layout
from vllm_vpp.errors import ConfigError
from vllm_vpp.plugin import partition
from vllm_vpp.plugin.costs import FLOPS, flops_cost
from vllm_vpp.plugin.law_file import LawFile
from vllm_vpp.plugin.log import logger
from vllm_vpp.plugin.planner import Planning, expected_lengths
from vllm_vpp.plugin.settings import AUTO, Cost, Resolved, Settings

__all__ = ["question", "resolve", "spelled"]

_SWEEPS = (1, 2, 3, 4)


def resolve(config: VllmConfig, settings: Settings) -> Resolved:
    """Everything that a start needs. Raises ConfigError, UnsupportedError or PlanningError."""
    law = LawFile(config).load() if settings.cost is None and settings.learns else None
    known = settings.cost.model() if settings.cost is not None else law
    ranks = config.parallel_config.pipeline_parallel_size
    sweeps, chunking, reason = settings.layout_for(ranks).sweeps, settings.chunking, ""
    if settings.layout == AUTO or settings.plans:
        answer = Planning(question(config, settings, known)).answer()
        sweeps, reason = answer["sweeps"], f": {answer['reason']}"
        if settings.plans:
            chunking = spelled(answer["chunking"], settings.chunking)
    layout = Layout(ranks, sweeps)
    _check_target(config, settings, layout, known)
    layers = partition.layers_per_stage(config, layout, settings)
    logger.info(
        "vpp: layout %s, layers per stage %s, ranks own %s layers%s",
        layout.name,
        layers,
        tuple(sum(layers[s] for s in layout.stages_of(rank)) for rank in range(ranks)),
        reason,
    )
    return Resolved(
        sweeps=sweeps,
        layers=list(layers),
        chunking=chunking,
        law=Cost(**asdict(law)) if law is not None else None,
        planned=settings.plans,
    )


def _check_target(
    config: VllmConfig, settings: Settings, layout: Layout, law: QuadraticCost | None
) -> None:
    """Refuse a target that no chunk can keep to; warn where that was only learned."""
    target = settings.itl_target_ms
    if target is None:
        return
    if not config.scheduler_config.enable_chunked_prefill:
        raise ConfigError(
            f"vpp.itl_target_ms={target:g}: this platform runs the model without chunks; "
            "leave it out"
        )
    if law is None:
        return
    bound = ItlBound(
        target=target / 1000,
        law=law,
        ranks=layout.ranks,
        in_flight=settings.depth_beside_decodes(layout),
    )
    chunk = Chunk("", 0, config.cache_config.block_size or 16)
    least = bound.seconds(MicroBatch(0, (chunk,))) * 1000
    if least <= target:
        return
    problem = (
        f"vpp.itl_target_ms={target:g}: a step with a chunk of {chunk.tokens} tokens takes "
        f"{least:.3g} ms behind {bound.in_flight - 1} such; must be at least that; raise it"
    )
    if settings.cost is not None:
        raise ConfigError(problem)
    logger.warning("%s", problem)


def question(config: VllmConfig, settings: Settings, law: QuadraticCost | None) -> dict[str, Any]:
    """A `vllm_vpp.auto.Question`; `law` in seconds, or None for one from the model's FLOPs."""
    from vllm.platforms import current_platform

    parallel, cache = config.parallel_config, config.cache_config
    ranks = parallel.pipeline_parallel_size
    wanted = [settings.layout_for(ranks).sweeps] if settings.layout != AUTO else list(_SWEEPS)
    splits = _splits(config, settings, {1, *wanted})
    given = asdict(flops_cost(config) if law is None else law)
    if law is None:
        given = {name: value * FLOPS for name, value in given.items()}
    return {
        "ranks": ranks,
        "sweeps": [s for s in wanted if s in splits],
        "splits": splits,
        "families": _families(settings.chunking),
        "lengths": settings.prompts or expected_lengths(config.model_config.max_model_len),
        "law": given,
        "limit": config.scheduler_config.max_num_batched_tokens,
        "block": cache.block_size or 16,
        "device": current_platform.get_device_name() if law is None else None,
    }


def _families(chunking: Mapping[str, Any] | None) -> list[str]:
    if chunking is None:
        return ["fixed", "equal-time", "ramp"]
    return ["ramp"] if chunking["policy"] in ("ramp", "hybrid") else ["fixed"]


def _splits(config: VllmConfig, settings: Settings, sweeps: set[int]) -> dict[int, list[int]]:
    """Balanced splits for each number of sweeps for which the model has layers enough."""
    free = settings.model_copy(update={"split": AUTO})
    found: dict[int, list[int]] = {}
    for count in sorted(sweeps):
        layout = Layout(config.parallel_config.pipeline_parallel_size, count)
        if count > 1 and layout.ranks == 1:
            continue
        try:
            found[count] = list(partition.layers_per_stage(config, layout, free))
        except ConfigError:
            continue
    return found


def spelled(
    answer: dict[str, Any] | None, chunking: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """The planner's table in the user's words: a hybrid is a ramp that is watched."""
    if answer is None or chunking is None:
        return answer
    own = {key: value for key, value in chunking.items() if key != "policy"}
    name = chunking["policy"]
    entries = [
        [length, {**spec, **own, "policy": name} if spec["policy"] == "ramp" else spec]
        for length, spec in answer["entries"]
    ]
    return {**answer, "entries": entries}
