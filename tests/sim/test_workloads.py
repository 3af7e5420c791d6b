"""Requests over time: who is served when, decode steps in between, and how fast it simulates."""

import itertools
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_vpp.core.batch import MicroBatch
from vllm_vpp.core.chunking import make_policy
from vllm_vpp.core.cost import QuadraticCost, StageCost
from vllm_vpp.core.layout import Layout
from vllm_vpp.core.order import OrderName
from vllm_vpp.errors import InputError
from vllm_vpp.sim import Links, Request, Run, Setup, at_once, one_after_another, simulate

LAW = QuadraticCost(c0=0.01, b=1e-5, a=1e-10)


def setup_of(layout: Layout | None = None, *, chunk: int = 1024, **options: object) -> Setup:
    layout = layout or Layout(2, 2)
    values: dict[str, object] = {
        "layout": layout,
        "cost": StageCost.by_layers(LAW, [1] * layout.stages),
        "policy": make_policy({"policy": "fixed", "chunk": chunk}, law=None, ranks=layout.ranks),
    }
    return Setup(**(values | options))  # type: ignore[arg-type]


def prompts_of(run: Run) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for batch in run.micro_batches:
        for chunk in batch.chunks:
            found.setdefault(chunk.request, []).append((chunk.prefix, chunk.tokens))
    return found


requests = st.lists(
    st.builds(
        lambda prompt, output, arrival, priority, cached: {
            "prompt": prompt,
            "output": output,
            "arrival": arrival / 100,
            "priority": priority,
            "cached": min(cached, prompt - 1),
        },
        st.integers(1, 9000),
        st.integers(1, 5),
        st.integers(0, 50),
        st.integers(0, 2),
        st.sampled_from([0, 0, 512]),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=100)
@given(
    drawn=requests,
    layout=st.builds(Layout, st.integers(1, 3), st.integers(1, 3)),
    order=st.sampled_from(OrderName),
    depth=st.none() | st.integers(1, 9),
    sharing=st.booleans(),
    limit=st.sampled_from([512, 2048, 1 << 20]),
)
def test_every_token_is_computed_once_and_in_order(
    drawn: list[dict[str, int]],
    layout: Layout,
    *,
    order: str,
    depth: int | None,
    sharing: bool,
    limit: int,
) -> None:
    given_requests = [Request(name=f"r{i}", **r) for i, r in enumerate(drawn)]  # type: ignore[arg-type]
    setup = setup_of(layout, order=order, depth=depth, sharing=sharing, limit=limit)
    run = simulate(given_requests, setup)
    run.schedule.check()
    found = prompts_of(run)
    for request in given_requests:
        at = request.cached
        for prefix, tokens in found[request.name]:
            assert prefix == at
            at += tokens
        assert at == request.prompt + request.output - 1
    for progress in run.requests:
        assert progress.done
        assert len(progress.token_ns) == progress.request.output
        assert progress.token_ns == sorted(progress.token_ns)
        assert progress.token_ns[0] > progress.arrival_ns
    for batch in run.micro_batches:
        assert 1 <= batch.tokens <= limit
        if not sharing:
            assert sum(c.tokens > 1 for c in batch.chunks) <= 1
    assert simulate(given_requests, setup).placed == run.placed, "equal input, equal run"


def test_a_decode_step_waits_for_the_token_before_it() -> None:
    run = simulate([Request(name="r", prompt=1, output=4)], setup_of())
    ends = run.requests[0].token_ns
    starts = [p.start_ns for p in run.placed if p.action.stage == 0]
    assert all(start >= end for start, end in zip(starts[1:], ends, strict=False))
    assert len(run.tpot()) == 1
    assert len(run.itl()) == 3


def test_decodes_go_on_while_another_prompt_is_prefilled() -> None:
    short = Request(name="short", prompt=64, output=20)
    long = Request(name="long", prompt=40_000, arrival=0.05)
    run = simulate([short, long], setup_of())
    mixed = [b for b in run.micro_batches if {c.request for c in b.chunks} == {"short", "long"}]
    assert mixed


@pytest.mark.parametrize("layout", [Layout(2, 2), Layout(4, 2), Layout(2, 3)], ids=str)
def test_requests_that_decode_wait_no_longer_than_in_a_plain_pipeline(layout: Layout) -> None:
    decoding = [Request(name=f"d{i}", prompt=64, output=60) for i in range(3)]
    wanted = [*decoding, Request(name="long", prompt=100_000, arrival=0.05)]

    def slowest(layout: Layout, **options: int) -> float:
        gaps = sorted(simulate(wanted, setup_of(layout, limit=1024, **options)).itl())
        return gaps[len(gaps) * 99 // 100]

    plain = slowest(Layout(layout.ranks, 1))
    assert slowest(layout) <= 1.1 * plain
    assert slowest(layout, depth=layout.depth()) > 1.1 * plain, "deeper would"


def test_smaller_priority_and_earlier_arrival_go_first() -> None:
    late = Request(name="late", prompt=5000, arrival=0.001)
    first = Request(name="first", prompt=5000)
    urgent = Request(name="urgent", prompt=5000, arrival=0.002, priority=-1)
    run = simulate([late, first, urgent], setup_of(depth=2))
    order = [r.request.name for r in sorted(run.requests, key=lambda r: r.token_ns[0])]
    assert order == ["urgent", "first", "late"]


def test_the_remainder_of_a_prompt_shares_its_micro_batch_where_that_delays_nobody() -> None:
    plain, folded = Layout(2, 1), Layout(2, 2)
    shared = simulate(at_once([1500, 1500]), setup_of(plain))
    assert [b.tokens for b in shared.micro_batches] == [1024, 476 + 544, 956]
    for setup in (setup_of(plain, sharing=False), setup_of(folded)):
        apart = simulate(at_once([1500, 1500]), setup)
        assert [b.tokens for b in apart.micro_batches] == [1024, 476, 1024, 476]


def test_clients_that_wait_send_one_prompt_after_another() -> None:
    run = simulate(one_after_another([3000, 3000, 3000]), setup_of())
    ends = [r.token_ns[-1] for r in run.requests]
    assert [r.arrival_ns for r in run.requests] == [0, *ends[:2]]
    assert len({round(t, 9) for t in run.ttft()}) == 1


def test_an_idle_engine_starts_at_the_next_arrival() -> None:
    run = simulate([Request(name="r", prompt=100, arrival=3.0)], setup_of())
    assert run.placed[0].start_ns == 3_000_000_000
    assert run.ttft()[0] < 0.1


def test_max_requests_limits_who_runs() -> None:
    run = simulate(at_once([2000] * 4, output=3), setup_of(max_requests=1))
    spans = [(r.token_ns[0], r.token_ns[-1]) for r in run.requests]
    assert all(a[1] < b[0] for a, b in itertools.pairwise(spans))


@pytest.mark.parametrize(
    ("values", "fragment"),
    [
        ({"prompt": 0}, "prompt=0"),
        ({"prompt": 5, "output": 0}, "output=0"),
        ({"prompt": 5, "cached": 5}, "cached=5"),
        ({"prompt": 5, "cached": -1}, "cached=-1"),
        ({"prompt": 5, "arrival": -1.0}, "arrival=-1.0"),
        ({"prompt": 5, "arrival": float("nan")}, "arrival=nan"),
    ],
)
def test_impossible_requests_are_one_clear_line(values: dict[str, float], fragment: str) -> None:
    with pytest.raises(InputError, match=fragment):
        Request(name="r", **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["depth", "limit", "block", "max_requests"])
def test_impossible_setups_are_one_clear_line(option: str) -> None:
    with pytest.raises(InputError, match=f"{option}=0"):
        setup_of(None, **{option: 0})
    with pytest.raises(InputError, match="at least one"):
        simulate([], setup_of())


def actions_per_second(layout: Layout, prompt: int) -> float:
    """Best of three, in processor time, so that other work on the machine counts little."""
    setup = setup_of(layout, chunk=512, links=Links(latency=1e-4))
    best = 0.0
    for _ in range(3):
        began = time.process_time()
        run = simulate(at_once([prompt]), setup)
        best = max(best, len(run.placed) / (time.process_time() - began))
    return best


def test_simulates_fast() -> None:
    """200,000 actions a second on an idle core; half of that leaves room for a busy machine."""
    assert actions_per_second(Layout(8, 2), 1_000_000) > 100_000


def test_memory_is_linear_in_actions() -> None:
    def peak(prompt: int) -> int:
        tracemalloc.start()
        simulate(at_once([prompt]), setup_of(Layout(4, 2), chunk=512))
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    assert peak(512 * 400) < 2.5 * peak(512 * 200)


def test_an_empty_micro_batch_costs_nothing() -> None:
    cost = StageCost.by_layers(LAW, [1, 1])
    assert cost.time(0, MicroBatch(0, ())) == 0
