"""Beyond the paper, in simulation: packing, growth that bends, the price of dispatch."""

from dataclasses import replace

import pytest

from vllm_vpp.core.cost import StageCost
from vllm_vpp.core.layout import Layout
from vllm_vpp.core.metrics import measure
from vllm_vpp.core.split import balanced_split
from vllm_vpp.sim.analytic import AnalyticCost, Device
from vllm_vpp.sim.hardware import read_hardware
from vllm_vpp.sim.links import FREE
from vllm_vpp.sim.model import Model, read_model
from vllm_vpp.sim.paper import K, Machine, calibrate_on
from vllm_vpp.sim.reference import ROWS
from vllm_vpp.sim.request import at_once
from vllm_vpp.sim.search import Family, Pipeline, best_of
from vllm_vpp.sim.shape import learned_shape
from vllm_vpp.sim.simulate import Run, simulate
from vllm_vpp.sim.splittable import law_of


@pytest.fixture(scope="module")
def machine() -> Machine:
    return calibrate_on(24 * K)


def three(machine: Machine, order: str, *, blocking: bool, packing: bool) -> Run:
    setup = replace(machine.setup("vpp", 32 * K, blocking=blocking), order=order, packing=packing)
    return simulate(at_once([256 * K] * 3), setup)


def test_the_papers_ablation_comes_out_in_its_order(machine: Machine) -> None:
    vanilla = three(machine, "vanilla", blocking=True, packing=False)
    ahead = three(machine, "async", blocking=False, packing=False)
    packed = three(machine, "async", blocking=False, packing=True)
    assert packed.makespan < ahead.makespan < vanilla.makespan
    bubbles = [measure(run.timeline()).bubble_ratio for run in (vanilla, ahead, packed)]
    assert bubbles[2] < bubbles[1]
    assert bubbles[2] <= 0.05
    assert packed.ttft()[0] <= ahead.ttft()[0] * 1.01


def windowed(model: Model, window: int) -> Model:
    """Five layers in six see `window` tokens only."""
    return replace(
        model,
        layers=tuple(
            layer
            if index % 6 == 5
            else replace(layer, attention=replace(layer.attention, window=window))
            for index, layer in enumerate(model.layers)
        ),
    )


def test_a_learned_shape_does_not_do_worse_where_growth_bends() -> None:
    model, layout, prompt = (
        windowed(read_model("qwen3-coder-30b-a3b"), 32 * K),
        Layout(2, 2),
        128 * K,
    )
    split = balanced_split(layout, len(model.layers))
    cost = AnalyticCost(model, Device(read_hardware("h200"), 8), split)
    found = {}
    for name, law in (
        ("ramp", law_of(cost, prompt)),
        ("hybrid", learned_shape(cost, prompt, 8 * K)),
    ):
        pipeline = Pipeline(layout=layout, cost=cost, law=law, links=FREE)
        found[name] = best_of(pipeline, Family.RAMP, prompt, effort=0.2).ttft
    assert found["hybrid"] <= found["ramp"] * 1.005


def test_dear_dispatch_leads_to_fewer_sweeps() -> None:
    row = ROWS[5]
    best = []
    for gap in (0.0, 3e-4):
        ttft = {}
        for sweeps in (2, 3, 4):
            layout = Layout(row.ranks, sweeps)
            cost = StageCost.by_layers(row.law, [1] * layout.stages)
            pipeline = Pipeline(layout=layout, cost=cost, law=row.law, links=row.links, gap=gap)
            ttft[sweeps] = best_of(pipeline, Family.RAMP, row.prompt, effort=0.2).ttft
        best.append(min(ttft, key=lambda s: ttft[s]))
    assert best[1] < best[0]
