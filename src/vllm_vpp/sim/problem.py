"""From names and numbers that a person gives to a problem for the planner.

Owns the defaults, the other assumptions under which an answer is tried again, and the list of where
every number comes from.
"""

from dataclasses import replace

from vllm_vpp.errors import InputError
from vllm_vpp.sim.analytic import AnalyticCost, Device
from vllm_vpp.sim.cost_file import read_cost
from vllm_vpp.sim.fitted import FittedCost
from vllm_vpp.sim.hardware import Hardware, read_hardware
from vllm_vpp.sim.links import TRIPS, Links
from vllm_vpp.sim.model import Model, read_model
from vllm_vpp.sim.options import Problem, Variant

__all__ = ["DISPATCH", "analytic_problem", "measured_problem", "parse_size"]

DISPATCH = 500e-6  # seconds of host work before each action: assumed


def parse_size(text: str) -> int:
    """Tokens from 32768, 32K or 1M (powers of two). Raises InputError for anything else."""
    units = {"K": 1 << 10, "M": 1 << 20}
    digits, unit = text.strip(), 1
    if digits[-1:].upper() in units:
        digits, unit = digits[:-1], units[digits[-1].upper()]
    try:
        value = round(float(digits) * unit) if unit > 1 else int(digits)
    except ValueError:
        value = 0
    if not 1 <= value <= 1 << 30:
        raise InputError(f"{text!r}: must be a number of tokens such as 32768, 32K or 1M")
    return value


def analytic_problem(
    model: str,
    hardware: str,
    *,
    ranks: int,
    ways: int = 1,
    across_nodes: bool = False,
    dispatch: float = DISPATCH,
    weight_bytes: float | None = None,
) -> Problem:
    """A problem from a model's sizes and a device's peaks, with assumptions to vary."""
    shape, profile = read_model(model, weight_bytes=weight_bytes), read_hardware(hardware)
    if ranks < 1:
        raise InputError(f"ranks={ranks}: must be at least 1; correct it")
    if dispatch < 0:
        raise InputError(f"dispatch={dispatch}: must be at least 0 seconds; correct it")
    cost, links = _on(shape, profile, ways, across_nodes)
    return Problem(
        cost=cost,
        ranks=ranks,
        links=links,
        model=shape,
        device=cost.device,
        gap=dispatch,
        across_nodes=across_nodes,
        starts=shape.starts if len(shape.starts) < len(shape.layers) else None,
        variants=tuple(
            Variant(label, *_on(shape, other, ways, across_nodes))
            for label, other in _assumptions(profile).items()
        ),
    )


def _on(
    model: Model, hardware: Hardware, ways: int, across_nodes: bool
) -> tuple[AnalyticCost, Links]:
    device = Device(hardware, ways)
    cost = AnalyticCost(model, device, (len(model.layers),))
    within = hardware.link_bandwidth
    bandwidth = hardware.network_bandwidth if across_nodes else within
    # each device sends its share, then the receivers put the shares together
    seconds = 1 / ways / bandwidth + (ways - 1) / ways / within
    links = Links(
        latency=TRIPS * (hardware.network_latency if across_nodes else hardware.link_latency),
        token_bytes=model.boundary_bytes_per_token,
        bandwidth=1 / seconds,
        channels=1,
    )
    return cost, links


def _assumptions(hardware: Hardware) -> dict[str, Hardware]:
    """The profile with one assumed number changed at a time."""
    return {
        "slower products": replace(hardware, matmul=hardware.matmul * 0.75),
        "faster products": replace(hardware, matmul=min(hardware.matmul * 1.25, 1.0)),
        "slower attention": replace(hardware, attention=hardware.attention * 0.6),
        "faster attention": replace(hardware, attention=min(hardware.attention * 1.5, 1.0)),
        "small chunks cheaper": replace(
            hardware,
            half_tokens=hardware.half_tokens / 3,
            layer_overhead=hardware.layer_overhead / 3,
        ),
        "small chunks dearer": replace(
            hardware,
            half_tokens=hardware.half_tokens * 3,
            layer_overhead=hardware.layer_overhead * 3,
        ),
        "slower links": replace(
            hardware,
            link_bandwidth=hardware.link_bandwidth / 2,
            network_bandwidth=hardware.network_bandwidth / 2,
        ),
    }


def measured_problem(path: str, *, ranks: int) -> Problem:
    """A problem from a cost file. A fitted one is tried again two standard errors off."""
    file = read_cost(path)
    if ranks < 1:
        raise InputError(f"ranks={ranks}: must be at least 1; correct it")
    links = file.overheads.links
    variants: tuple[Variant, ...] = ()
    if isinstance(file.cost, FittedCost):
        variants = tuple(
            Variant(f"{name} {sign:+d} standard errors", file.cost.shifted(name, sign), links)
            for name, coefficient in file.cost.coefficients.items()
            if coefficient.error is not None
            for sign in (-2, 2)
        )
    return Problem(
        cost=file.cost,
        ranks=ranks,
        links=links,
        gap=file.overheads.gap,
        block=_block(file.notes.get("block_size", "16"), path),
        variants=variants,
    )


def _block(text: str, path: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"cost={path!r}: block_size={text!r}: must be tokens; calibrate again")
    return int(text)
