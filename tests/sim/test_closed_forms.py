"""The simulator against the closed forms of docs/theory.md, exact where the theory is exact."""

from itertools import accumulate, combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_vpp.core.batch import MicroBatch
from vllm_vpp.core.chunking import make_policy
from vllm_vpp.core.cost import QuadraticCost, StageCost
from vllm_vpp.core.layout import Layout
from vllm_vpp.core.metrics import measure
from vllm_vpp.core.order import OrderName
from vllm_vpp.sim import Links, Run, Setup, at_once, simulate

NS = 1_000_000_000
SOME = 10**6  # micro-batches in flight: no limit


class Times:
    """Whole-model nanoseconds of each micro-batch, divided equally over the stages."""

    def __init__(self, times: list[int], stages: int) -> None:
        self.times_ns = times
        self.stages = stages

    def time(self, stage: int, micro_batch: MicroBatch) -> float:
        return self.times_ns[micro_batch.index] / self.stages / NS


def run(layout: Layout, times: list[int], *, order: str = "greedy", depth: int = SOME) -> Run:
    """One chunk per entry; makespan in nanoseconds."""
    policy = make_policy({"policy": "fixed", "chunk": 1}, law=None, ranks=layout.ranks)
    cost = Times(times, layout.stages)
    setup = Setup(layout=layout, cost=cost, policy=policy, block=1, order=order, depth=depth)
    return simulate(at_once([len(times)]), setup)


def makespan(layout: Layout, times: list[int], *, order: str = "greedy", depth: int = SOME) -> int:
    return round(run(layout, times, order=order, depth=depth).makespan * NS)


times_lists = st.lists(st.integers(1, 1000), min_size=1, max_size=24)
ranks_and_sweeps = st.tuples(st.integers(1, 8), st.integers(1, 4))


@settings(max_examples=200)
@given(ranks=st.integers(1, 8), times=times_lists)
def test_linear_makespan_is_the_flow_shops(ranks: int, times: list[int]) -> None:
    """Theory (2): T = W/P + (P-1)/P max t_i, whatever the order of sizes."""
    scaled = [t * ranks for t in times]
    expected = sum(times) + (ranks - 1) * max(times)
    assert makespan(Layout(ranks, 1), scaled) == expected


@settings(max_examples=200)
@given(shape=ranks_and_sweeps, times=times_lists, order=st.sampled_from(OrderName))
def test_no_schedule_beats_the_limit_or_the_bound_of_its_layout(
    shape: tuple[int, int], times: list[int], order: OrderName
) -> None:
    """Theory (1), (3), (8): W/P, and (P-1)/(vP) (t_first + t_last) more for an even v."""
    layout = Layout(*shape)
    scaled = [t * layout.stages for t in times]
    found = makespan(layout, scaled, order=order)
    ranks, sweeps = shape
    ends = times[0] + times[-1] if sweeps % 2 == 0 else max(times[0], times[-1])
    assert found >= sum(times) * sweeps + (ranks - 1) * ends
    if ranks == 1:
        assert found == sum(times) * sweeps


def affine_times(share: float, count: int) -> list[int]:
    """Equal chunks of a prompt, `share` of whose time is attention."""
    return [round(10**6 * ((1 - share) + share * (2 * k + 1) / count)) for k in range(count)]


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8])
@pytest.mark.parametrize(
    ("share", "least", "points"), [(0.5, 2, 0.001), (0.67, 2, 1.3), (0.8, 3, 1.2), (1.0, 8, 0.7)]
)
def test_greedy_v_comes_close_to_its_bound(
    ranks: int, share: float, least: int, points: float
) -> None:
    """Theory (3): from `least` P chunks on within so many points; steep growth takes more."""
    for count in range(least * ranks, (least + 4) * ranks + 1, 3):
        times = affine_times(share, count)
        bound = 2 * sum(times) + (ranks - 1) * (times[0] + times[-1])
        found = makespan(Layout(ranks, 2), [t * 2 * ranks for t in times])
        assert bound <= found <= bound + points / 100 * 2 * sum(times)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_every_rank_has_the_same_work_in_a_window_of_affine_chunks(ranks: int) -> None:
    """Theory (4): chunks n - r and n - (2P - 1 - r), the same sum for every rank."""
    intercept, slope = 3, 7

    def tau(k: int) -> int:
        return intercept + slope * k

    n = 40
    sums = {tau(n - r) + tau(n - (2 * ranks - 1 - r)) for r in range(ranks)}
    assert len(sums) == 1
    bent = {(n - r) ** 2 + (n - (2 * ranks - 1 - r)) ** 2 for r in range(ranks)}
    assert ranks == 1 or len(bent) > 1, "a curved tau_k must unbalance the ranks"


def test_worked_numbers_of_the_paper() -> None:
    """Two ranks, tau_k = k + 1 per stage: at k = 3 rank 1 takes 8, rank 0 takes 3 + 5."""
    layout = Layout(2, 2)
    times = [4 * (k + 1) for k in range(8)]
    tau = [t // layout.stages for t in times]
    assert 2 * tau[3] == 8 == tau[2] + tau[4]
    assert 2 * tau[0] == tau[1], "the boundary balances too"
    placed = {(p.action.stage, p.action.micro_batch): p for p in run(layout, times).placed}
    rank1 = [placed[s, 3] for s in (1, 2)]
    rank0 = [placed[3, 2], placed[0, 4]]
    assert [sum(p.end_ns - p.start_ns for p in pair) for pair in (rank1, rank0)] == [8, 8]


def test_packing_window_of_the_paper() -> None:
    """N = 8, t = 1: the drain leaves a window of N + 1 = 9; chunks 1 + 2 + 3 fit, 3 are left."""
    count, t = 8, 1
    window = (count + 1) * t
    fitting = [total for total in accumulate(k * t for k in range(1, count + 1)) if total <= window]
    assert (len(fitting), window - fitting[-1]) == (3, 3)
    assert (len(fitting) + 1) * t > window - fitting[-1]


def test_the_next_prompt_fills_the_drain() -> None:
    """Two equal prompts take less than twice one prompt, by about the drain and the fill."""
    law = QuadraticCost(c0=0.0, b=0.5, a=1.0)
    layout = Layout(2, 2)
    setup = Setup(
        layout=layout,
        cost=StageCost.by_layers(law, [1] * 4),
        policy=make_policy({"policy": "fixed", "chunk": 1}, law=None, ranks=2),
        block=1,
    )
    one = simulate(at_once([8]), setup).makespan
    two = simulate(at_once([8, 8]), setup).makespan
    assert 2 * one - two >= 2.0  # of a drain of 9/4 on rank 1


@pytest.mark.parametrize(
    ("ranks", "chunk", "least_loss"), [(4, 16 * 1024, 0.02), (8, 8 * 1024, 0.036)]
)
def test_a_v_needs_more_than_one_micro_batch_per_rank_in_flight(
    ranks: int, chunk: int, least_loss: float
) -> None:
    """Theory (5), at 128K: P in flight lose points, 2P + 1 lose nothing."""
    prompt = 128 * 1024
    law = QuadraticCost(c0=256 / prompt, b=0.5 / prompt, a=1 / prompt**2)
    layout = Layout(ranks, 2)

    def at_depth(depth: int) -> float:
        setup = Setup(
            layout=layout,
            cost=StageCost.by_layers(law, [1] * layout.stages),
            policy=make_policy({"policy": "fixed", "chunk": chunk}, law=None, ranks=ranks),
            depth=depth,
        )
        return simulate(at_once([prompt]), setup).makespan

    assert at_depth(ranks) / at_depth(SOME) - 1 >= least_loss
    assert at_depth(layout.depth()) / at_depth(SOME) - 1 < 1e-6


@pytest.mark.parametrize("chunks", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_greedy_is_optimal_for_growing_chunks_on_two_ranks(chunks: int, share: float) -> None:
    """Against brute force over all orders."""
    times = affine_times(share, chunks)
    assert makespan(Layout(2, 2), [4 * t for t in times]) == best_makespan(times)


@settings(max_examples=60)
@given(times=st.lists(st.integers(1, 20), min_size=1, max_size=4))
def test_greedy_is_within_a_tenth_of_the_best_for_any_chunks(times: list[int]) -> None:
    """Worst of 200 random lists of up to five: 3.8%."""
    found, best = makespan(Layout(2, 2), [4 * t for t in times]), best_makespan(times)
    assert best <= found <= 1.1 * best


def best_makespan(times: list[int]) -> int:
    """Shortest makespan over all pairs of orders of the two ranks, every start the earliest."""
    outer, inner = interleavings(len(times), 0, 3), interleavings(len(times), 1, 2)
    spans = (semi_active(times, pair) for pair in product(outer, inner))
    return min(span for span in spans if span is not None)


def interleavings(count: int, first: int, second: int) -> list[list[tuple[int, int]]]:
    """Orders of (stage, chunk) that keep chunks in order and each chunk's stages in order."""
    found = []
    for places in combinations(range(2 * count), count):
        queues = {first: iter(range(count)), second: iter(range(count))}
        stages = [first if position in places else second for position in range(2 * count)]
        order = [(stage, next(queues[stage])) for stage in stages]
        place = {action: position for position, action in enumerate(order)}
        if all(place[first, k] < place[second, k] for k in range(count)):
            found.append(order)
    return found


def semi_active(times: list[int], orders: tuple[list[tuple[int, int]], ...]) -> int | None:
    """Makespan of the given orders, or None where they wait for each other."""
    ends: dict[tuple[int, int], int] = {(-1, k): 0 for k in range(len(times))}
    clock, at = [0, 0], [0, 0]
    total = sum(map(len, orders))
    while sum(at) < total:
        before = sum(at)
        for rank, order in enumerate(orders):
            while at[rank] < len(order):
                stage, k = order[at[rank]]
                if (stage - 1, k) not in ends:
                    break
                clock[rank] = ends[stage, k] = max(clock[rank], ends[stage - 1, k]) + times[k]
                at[rank] += 1
        if sum(at) == before:
            return None
    return max(clock)


def test_transfers_queue_on_one_channel_and_not_on_many() -> None:
    """Linear, two ranks: with transfers longer than stages the channel sets the pace."""
    stage_ns, transfer_ns, count = 10, 30, 6

    def span(channels: int | None) -> int:
        layout = Layout(2, 1)
        setup = Setup(
            layout=layout,
            cost=Times([2 * stage_ns] * count, 2),
            policy=make_policy({"policy": "fixed", "chunk": 1}, law=None, ranks=2),
            block=1,
            links=Links(latency=transfer_ns / NS, channels=channels),
            depth=SOME,
        )
        return round(simulate(at_once([count]), setup).makespan * NS)

    assert span(1) == stage_ns + count * transfer_ns + stage_ns
    assert span(None) == count * stage_ns + transfer_ns + stage_ns


def test_a_blocking_send_holds_its_rank_up() -> None:
    stage_ns, transfer_ns, count = 10, 5, 6
    layout = Layout(2, 1)
    setup = Setup(
        layout=layout,
        cost=Times([2 * stage_ns] * count, 2),
        policy=make_policy({"policy": "fixed", "chunk": 1}, law=None, ranks=2),
        block=1,
        links=Links(latency=transfer_ns / NS, blocking=True),
        depth=SOME,
    )
    found = simulate(at_once([count]), setup)
    assert round(found.makespan * NS) == count * (stage_ns + transfer_ns) + stage_ns
    metrics = measure(found.timeline())
    assert metrics.ranks[0].exposed * NS == pytest.approx(count * transfer_ns)
    assert metrics.ranks[0].overlap_ratio == 0


def test_dispatch_and_host_overhead_cost_what_they_should() -> None:
    layout = Layout(1, 1)
    policy = make_policy({"policy": "fixed", "chunk": 1}, law=None, ranks=1)

    def span(*, gap: float = 0.0, host: float = 0.0, depth: int = 4) -> int:
        setup = Setup(
            layout=layout,
            cost=Times([10] * 5, 1),
            policy=policy,
            block=1,
            gap=gap,
            host=host,
            depth=depth,
        )
        return round(simulate(at_once([5]), setup).makespan * NS)

    assert span() == 50
    assert span(gap=3 / NS) == 50 + 4 * 3  # the first one lies before the first compute
    assert span(host=4 / NS) == 50  # hidden while another micro-batch runs
    assert span(host=4 / NS, depth=1) == 50 + 4 * 4


@settings(max_examples=100)
@given(shape=ranks_and_sweeps, times=times_lists, latency=st.integers(0, 50))
def test_metrics_of_a_simulation_sum_to_its_makespan(
    shape: tuple[int, int], times: list[int], latency: int
) -> None:
    layout = Layout(*shape)
    setup = Setup(
        layout=layout,
        cost=Times([t * layout.stages for t in times], layout.stages),
        policy=make_policy({"policy": "fixed", "chunk": 1}, law=None, ranks=layout.ranks),
        block=1,
        links=Links(latency=latency / NS, channels=2),
    )
    found = simulate(at_once([len(times)]), setup)
    metrics = measure(found.timeline())
    found.schedule.check()
    assert metrics.makespan == pytest.approx(found.makespan)
    for rank in metrics.ranks:
        assert rank.compute + rank.exposed + rank.bubble == pytest.approx(metrics.makespan)
        assert rank.fill + rank.drain + rank.stall + rank.host == pytest.approx(rank.bubble)
    assert metrics.limit * layout.ranks == pytest.approx(found.compute)
    assert metrics.distance_to_limit >= 1 - 1e-9
