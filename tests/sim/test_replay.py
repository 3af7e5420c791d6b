"""A recorded run replayed: same order, same times, when costs are the same."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_vpp.core.chunking import make_policy
from vllm_vpp.core.cost import QuadraticCost, StageCost
from vllm_vpp.core.layout import Layout
from vllm_vpp.core.order import OrderName
from vllm_vpp.core.schedule import Action, Schedule
from vllm_vpp.core.timeline import Timeline
from vllm_vpp.sim import Links, Request, Run, Setup, simulate
from vllm_vpp.sim.fitted import Measured, fit
from vllm_vpp.sim.overheads import measure_overheads
from vllm_vpp.sim.replay import differences, measured_schedule, replay

LAW = QuadraticCost(c0=0.01, b=1e-5, a=1e-10)


def setup_of(layout: Layout, *, order: str = "greedy", depth: int | None = None) -> Setup:
    return Setup(
        layout=layout,
        cost=StageCost.by_layers(LAW, [1] * layout.stages),
        policy=make_policy({"policy": "fixed", "chunk": 2048}, law=None, ranks=layout.ranks),
        order=order,
        depth=depth,
        links=Links(latency=1e-3, token_bytes=1.0, bandwidth=1e6, channels=1),
        gap=2e-3,
        packing=None,  # a timeline does not say what was held back, and until when
    )


def as_measured(run: Run) -> Timeline:
    timeline = run.timeline()
    return Timeline(
        layout=timeline.layout,
        spans=timeline.spans,
        micro_batches=timeline.micro_batches,
        source="measured",
    )


@settings(max_examples=60)
@given(
    layout=st.builds(Layout, st.integers(1, 4), st.integers(1, 3)),
    order=st.sampled_from(OrderName),
    prompts=st.lists(st.integers(1, 20_000), min_size=1, max_size=3),
    output=st.integers(1, 4),
    depth=st.integers(1, 12),
)
def test_replay_of_a_simulation_is_that_simulation(
    layout: Layout, order: str, prompts: list[int], output: int, depth: int
) -> None:
    setup = setup_of(layout, order=order, depth=depth)
    requests = [Request(name=f"r{i}", prompt=p, output=output) for i, p in enumerate(prompts)]
    run = simulate(requests, setup)
    again = replay(as_measured(run), setup)
    assert differences(again.schedule, measured_schedule(as_measured(run))) == []
    assert again.placed == run.placed


def test_another_order_is_told_apart() -> None:
    layout = Layout(2, 2)
    requests = [Request(name="r", prompt=20_000)]
    greedy = simulate(requests, setup_of(layout))
    vanilla = simulate(requests, setup_of(layout, order="async"))
    lines = differences(greedy.schedule, vanilla.schedule)
    assert lines
    assert all("against" in line for line in lines)
    short = Schedule(layout, ((Action(0, 0),), (Action(1, 0),)))
    empty = Schedule(layout, ((), (Action(1, 0),)))
    assert differences(short, empty) == ["rank 0, action 0: s0/C0 against nothing"]


def test_fit_and_overheads_from_recorded_runs_predict_others() -> None:
    """Fitted on short runs, asked about a longer one."""
    requests = [Request(name="r", prompt=40_000)]
    recorded = [as_measured(simulate(requests, setup_of(Layout(2, s)))) for s in (1, 2)]
    cost = fit([Measured(t, (24 // t.layout.stages,) * t.layout.stages) for t in recorded])
    overheads = measure_overheads(recorded)
    assert overheads.gap == pytest.approx(2e-3, rel=0.01)
    assert overheads.latency == pytest.approx(1e-3, rel=0.05)
    assert overheads.per_token == pytest.approx(1e-6, rel=0.05)
    layout = Layout(2, 2)
    truth = simulate([Request(name="r", prompt=60_000)], setup_of(layout)).makespan
    setup = Setup(
        layout=layout,
        cost=cost.with_split((6, 6, 6, 6)),
        policy=make_policy({"policy": "fixed", "chunk": 2048}, law=None, ranks=2),
        links=overheads.links,
        gap=overheads.gap,
    )
    assert simulate([Request(name="r", prompt=60_000)], setup).makespan == pytest.approx(
        truth, rel=0.01
    )
