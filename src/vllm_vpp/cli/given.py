"""Options that `plan` and `simulate` share, and the problem they describe."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from vllm_vpp.errors import InputError

if TYPE_CHECKING:
    from vllm_vpp.sim.options import Problem

__all__ = [
    "AcrossNodes",
    "Block",
    "Cost",
    "Depth",
    "Dispatch",
    "HardwareName",
    "ItlTarget",
    "MaxChunk",
    "ModelName",
    "Ranks",
    "TensorParallel",
    "WeightBytes",
    "given_problem",
    "seconds",
    "sizes",
]

ModelName = Annotated[
    str | None,
    typer.Option(help="A shipped model's name, a config.json, or a folder that holds one."),
]
HardwareName = Annotated[
    str | None, typer.Option(help="A shipped device profile, or a .json file with the same fields.")
]
Cost = Annotated[
    str | None, typer.Option(help="Instead of both: a file that `vllm-vpp calibrate` wrote.")
]
Ranks = Annotated[int, typer.Option(help="Pipeline ranks.")]
TensorParallel = Annotated[int, typer.Option(help="Devices per rank.")]
_NODE = 8  # devices of a usual node
AcrossNodes = Annotated[
    bool | None,
    typer.Option(help=f"Ranks are on different nodes; as a rule beyond {_NODE} devices."),
]
Dispatch = Annotated[
    float | None, typer.Option(help="Host microseconds before each action; 500 if not measured.")
]
Depth = Annotated[
    int | None, typer.Option(help="Micro-batches in flight; one more than stages by default.")
]
MaxChunk = Annotated[str | None, typer.Option(help="Largest chunk allowed, for instance 16K.")]
Block = Annotated[
    int | None,
    typer.Option(help="Tokens of a KV block, 128 on CPUs; as recorded, or 16, by default."),
]
WeightBytes = Annotated[
    float | None, typer.Option(help="Bytes per weight; read from the config by default.")
]
ItlTarget = Annotated[
    float | None,
    typer.Option(help="Bound on the time between tokens beside a prompt; says what it costs."),
]


def seconds(milliseconds: float | None) -> float | None:
    """Seconds of `--itl-target-ms`. Raises InputError for what no request can keep to."""
    if milliseconds is not None and not 0 < milliseconds < float("inf"):
        raise InputError(f"--itl-target-ms {milliseconds}: must be above 0; correct it")
    return None if milliseconds is None else milliseconds / 1000


def sizes(text: str) -> list[int]:
    """Token counts from `32K,128K`."""
    from vllm_vpp.sim.problem import parse_size

    return [parse_size(part) for part in text.split(",")]


def given_problem(
    names: Sequence[str | None],
    *,
    ranks: int,
    ways: int,
    across_nodes: bool | None,
    dispatch: float | None,
    depth: int | None,
    max_chunk: str | None,
    block: int | None,
    weight_bytes: float | None,
) -> "Problem":
    """The problem of (model, hardware, cost file). Raises InputError where they do not fit."""
    from vllm_vpp.sim.problem import DISPATCH, analytic_problem, measured_problem, parse_size

    model, hardware, cost = names
    if weight_bytes is not None and not 0 < weight_bytes <= 8:
        raise InputError(f"--weight-bytes {weight_bytes}: must be above 0 and at most 8")
    if depth is not None and depth < 1:
        raise InputError(f"--depth {depth}: must be at least 1")
    if block is not None and block < 1:
        raise InputError(f"--block {block}: must be at least 1")
    if dispatch is not None and not 0 <= dispatch < 1e9:
        raise InputError(f"--dispatch {dispatch}: must be microseconds of at least 0")
    seconds = None if dispatch is None else dispatch * 1e-6
    if cost is not None and model is None and hardware is None:
        problem = measured_problem(cost, ranks=ranks)
        problem = problem if seconds is None else replace(problem, gap=seconds)
    elif model is not None and hardware is not None and cost is None:
        problem = analytic_problem(
            model,
            hardware,
            ranks=ranks,
            ways=ways,
            across_nodes=ranks * ways > _NODE if across_nodes is None else across_nodes,
            dispatch=DISPATCH if seconds is None else seconds,
            weight_bytes=weight_bytes,
        )
    else:
        raise InputError(
            "say what to plan for: give either --model and --hardware, or --cost alone"
        )
    limit = problem.limit if max_chunk is None else parse_size(max_chunk)
    return replace(problem, depth=depth, limit=limit, block=block or problem.block)
