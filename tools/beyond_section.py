"""The part of docs/validation.md on what goes beyond the paper.

Everything is simulated when the page is made.
"""

from collections.abc import Sequence
from dataclasses import replace

from vllm_vpp.core.cost import QuadraticCost, RowCost, StageCost
from vllm_vpp.core.layout import Layout
from vllm_vpp.core.marginal import MarginalCost
from vllm_vpp.core.metrics import measure
from vllm_vpp.core.split import balanced_split
from vllm_vpp.sim.analytic import AnalyticCost, Device
from vllm_vpp.sim.hardware import read_hardware
from vllm_vpp.sim.links import FREE
from vllm_vpp.sim.model import Model, read_model
from vllm_vpp.sim.paper import K, Machine
from vllm_vpp.sim.reference import ROWS, Row
from vllm_vpp.sim.request import at_once
from vllm_vpp.sim.search import Family, Pipeline, best_of
from vllm_vpp.sim.shape import learned_shape
from vllm_vpp.sim.simulate import simulate
from vllm_vpp.sim.splittable import law_of

PROMPT = 128 * K


def lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    return "\n".join("| " + " | ".join(r) + " |" for r in [head, ["---"] * len(head), *rows])


def ablation(machine: Machine) -> str:
    """The paper's three requests, 256K tokens each, in chunks of 32K."""
    variants = (
        ("vanilla", "vanilla", True, False, "11.0%", ""),
        ("async", "async", False, False, "8.3%", "-3.13%"),
        ("async, packed", "async", False, True, "2.4%", "-6.89%"),
        ("greedy, packed", "greedy", False, True, "", ""),
    )
    rows, base = [], 0.0
    bubbles: dict[str, float] = {}
    for name, order, blocking, packing, bubble, change in variants:
        setup = machine.setup("vpp", 32 * K, blocking=blocking)
        setup = replace(setup, order=order, packing=packing)
        run = simulate(at_once([256 * K] * 3), setup)
        base = base or run.makespan
        found = bubbles[name] = measure(run.timeline()).bubble_ratio
        rows.append([name, f"{found:.1%}", bubble, f"{run.makespan / base - 1:+.2%}", change])
    head = ["variant", "bubble ratio", "published", "latency", "published"]
    falls = bubbles["vanilla"] > bubbles["async"] > bubbles["async, packed"]
    order = "is" if falls else "is not"
    verdict = f"The published order of the three bubble ratios {order} reproduced."
    return f"{lines(head, rows)}\n\n{verdict}"


def with_dispatch(row: Row, gap: float) -> list[float]:
    """Best T / (W/P) with ramps on two, three and four sweeps; `gap` in shares of W per action."""
    found = []
    for sweeps in (2, 3, 4):
        layout = Layout(row.ranks, sweeps)
        cost = StageCost.by_layers(row.law, [1] * layout.stages)
        pipeline = Pipeline(layout=layout, cost=cost, law=row.law, links=row.links, gap=gap)
        best = best_of(pipeline, Family.RAMP, row.prompt, effort=0.3)
        found.append(best.ttft * row.ranks)
    return found


def sweeps() -> str:
    """Sweeps against the cost of dispatching an action."""
    rows = []
    for row in (ROWS[1], ROWS[5]):
        for gap in (0.0, 1e-4, 1e-3):
            found = with_dispatch(row, gap)
            best = ("V", "3 sweeps", "4 sweeps")[found.index(min(found))]
            cells = [f"{value:.3f}" for value in found]
            rows.append([str(row.ranks), f"{row.prompt // K}K", f"{gap:.0e}", *cells, best])
    head = ["P", "prompt", "dispatch / W", "V", "3 sweeps", "4 sweeps", "chosen"]
    return lines(head, rows)


def bent() -> list[tuple[str, Model]]:
    """Models whose chunk times do not grow linearly."""
    plain = read_model("qwen3-coder-30b-a3b")
    window = 32 * K
    layers = tuple(
        layer
        if index % 6 == 5
        else replace(layer, attention=replace(layer.attention, window=window))
        for index, layer in enumerate(plain.layers)
    )
    mixed = replace(plain, name="windows of 32K", layers=layers)
    sparse = read_model("glm-5.2")
    return [("Qwen3-Coder, five layers in six see 32K tokens", mixed), ("GLM-5.2 with DSA", sparse)]


def distance(
    cost: RowCost, law: QuadraticCost | MarginalCost, family: Family, prompt: int
) -> float:
    """Bubble ratio of the best chunking that a law finds on a V of two ranks."""
    pipeline = Pipeline(layout=Layout(2, 2), cost=cost, law=law, links=FREE)
    best = best_of(pipeline, family, prompt, effort=0.3)
    return measure(pipeline.run(best.spec, [prompt]).timeline()).bubble_ratio


def hybrid() -> str:
    """Fixed chunks, ramps of a quadratic law, and of the law that an engine would learn."""
    rows = []
    device = Device(read_hardware("h200"), 8)
    for name, model in bent():
        layout = Layout(2, 2)
        split = balanced_split(layout, len(model.layers), starts=model.starts)
        cost = AnalyticCost(model, device, split)
        quadratic, shape = law_of(cost, PROMPT), learned_shape(cost, PROMPT, 8 * K)
        rows.append(
            [
                name,
                f"{distance(cost, quadratic, Family.FIXED, PROMPT):.1%}",
                f"{distance(cost, quadratic, Family.RAMP, PROMPT):.1%}",
                f"{distance(cost, shape, Family.RAMP, PROMPT):.1%}",
            ]
        )
    return lines(["model", "V, best fixed", "V, ramp", "V, hybrid"], rows)


def depths() -> str:
    """In-flight depth against the default of one per stage and one."""
    rows = []
    for row in (ROWS[4], ROWS[6]):
        layout = Layout(row.ranks, 2)
        cost = StageCost.by_layers(row.law, [1] * layout.stages)
        cells = []
        for depth in (
            row.ranks,
            layout.stages - 1,
            layout.stages,
            layout.depth(),
            2 * layout.stages,
        ):
            pipeline = Pipeline(layout=layout, cost=cost, law=row.law, links=row.links, depth=depth)
            run = pipeline.run({"policy": "fixed", "chunk": row.prompt // 16}, [row.prompt])
            cells.append(f"{run.makespan * row.ranks:.3f}")
        rows.append([str(row.ranks), f"{row.prompt // K}K", *cells])
    head = ["P", "prompt", "P", "2P - 1", "2P", "2P + 1 (default)", "4P"]
    return lines(head, rows)


def section(machine: Machine) -> str:
    """All of it."""
    return f"""## Packing: the paper's ablation

Three requests at once, 256K tokens each, chunks of 32K, the same calibration. Vanilla sends block;
async sends overlap.

{ablation(machine)}

## How many sweeps, with a price on dispatch

Ramps found by the planner's search, T / (W/P), when every action costs its rank a share of W.

{sweeps()}

## Growth that bends

Bubble ratio of a V on two ranks of 8 H200, 128K tokens, analytic costs. The hybrid's law is what
the engine's own fit makes of the chunks that it has seen.

{hybrid()}

## Micro-batches in flight

T / (W/P) of a V, 16 equal chunks.

{depths()}

"""
