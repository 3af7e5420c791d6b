"""Chunking policies: every prompt covered once, whatever the numbers; each rule by its formula."""

import time
from itertools import accumulate, combinations, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_vpp.core.chunking import POLICIES, View, chunk_plan, make_policy, next_chunk
from vllm_vpp.core.chunking.by_length import ByLength
from vllm_vpp.core.chunking.equal import Fixed
from vllm_vpp.core.chunking.ramp import Ramp
from vllm_vpp.core.chunking.throttle import TokenThrottle
from vllm_vpp.core.cost import QuadraticCost
from vllm_vpp.core.marginal import Knot, MarginalCost
from vllm_vpp.errors import ConfigError

LAW = QuadraticCost(c0=0.02, b=1e-5, a=2e-10)
SPECS: dict[str, dict[str, Any]] = {
    "fixed": {"chunk": 8192},
    "equal-time": {"chunk": 16384},
    "equal-time-online": {"chunk": 16384, "minimum": 1024},
    "dp": {},
    "equal-flops": {"chunks": 9},
    "ramp": {"peak": 8192, "down": 4, "up": 2},
    "hybrid": {"peak": 8192, "down": 4, "up": 2},
    "token-throttle": {},
    "by-length": {"entries": [[4096, {"policy": "fixed", "chunk": 4096}]]},
    "list": {"chunks": [4096, 8192, 2048]},
}


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    name = draw(st.sampled_from(sorted(POLICIES)))
    size = st.integers(1, 40_000)
    drawn: dict[str, dict[str, st.SearchStrategy[Any]]] = {
        "fixed": {"chunk": size},
        "equal-time": {"chunk": size, "smoothing": st.floats(0, 1), "up": st.booleans()},
        "equal-time-online": {"chunk": size, "minimum": st.integers(0, 9000)},
        "dp": {},
        "equal-flops": {"chunks": st.integers(1, 40)},
        "ramp": {"peak": size, "down": st.integers(0, 16), "up": st.integers(0, 3)},
        "hybrid": {"peak": size, "down": st.integers(0, 16), "up": st.integers(0, 3)},
        "token-throttle": {"iterations": st.integers(1, 16), "minimum": st.integers(64, 9000)},
        "by-length": {
            "entries": st.lists(
                st.tuples(size, st.builds(lambda n: {"policy": "ramp", "peak": max(n, 64)}, size)),
                min_size=1,
                max_size=4,
                unique_by=lambda entry: entry[0],
            )
        },
        "list": {"chunks": st.lists(size, min_size=1, max_size=8)},
    }
    return {"policy": name} | {key: draw(values) for key, values in drawn[name].items()}


laws = st.builds(
    QuadraticCost,
    c0=st.floats(0, 1),
    b=st.floats(1e-8, 1e-3),
    a=st.one_of(st.just(0.0), st.floats(1e-14, 1e-7)),
    gamma=st.floats(0, 1e-6),
)


@settings(max_examples=400)
@given(
    spec=specs(),
    law=laws,
    length=st.integers(1, 150_000),
    limit=st.integers(16, 70_000),
    block=st.sampled_from([1, 16, 128]),
)
def test_chunks_cover_the_prompt_once_within_the_limits(
    spec: dict[str, Any], law: QuadraticCost, length: int, limit: int, block: int
) -> None:
    limit = max(limit, 2 * block, length // 3000)
    policy = make_policy(spec, law=law, ranks=4)
    if spec.get("chunk", 9999) < 50 or spec.get("peak", 9999) < 50:
        length = min(length, 2000)
    plan = chunk_plan(policy, length, limit=limit, block=block)
    assert sum(plan) == length
    assert all(1 <= size <= limit for size in plan)
    assert all(end % block == 0 for end in list(accumulate(plan))[:-1])
    assert len(plan) == 1 or plan[-1] >= block, "a tail shorter than a block"
    assert plan == chunk_plan(policy, length, limit=limit, block=block)


@settings(max_examples=200)
@given(spec=specs(), data=st.data())
def test_any_view_gets_a_legal_chunk(spec: dict[str, Any], data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 100_000))
    start = data.draw(st.integers(0, length - 1))
    prefix = data.draw(st.integers(start, length - 1))
    limit = data.draw(st.integers(1, 50_000))
    policy = make_policy(spec, law=LAW, ranks=2)
    size = next_chunk(policy, View(prefix, length, limit, start=start))
    assert 1 <= size <= min(limit, length - prefix)


def test_fixed_leaves_the_remainder_last() -> None:
    policy = make_policy({"policy": "fixed", "chunk": 8192}, law=None, ranks=1)
    assert chunk_plan(policy, 20_000, limit=8192) == (8192, 8192, 3616)


def test_a_tail_shorter_than_a_block_joins_its_chunk_or_takes_a_block() -> None:
    policy = make_policy({"policy": "fixed", "chunk": 1024}, law=None, ranks=1)
    assert chunk_plan(policy, 2050, limit=2048) == (1024, 1026)
    assert chunk_plan(policy, 2050, limit=1024) == (1024, 1008, 18)


@pytest.mark.parametrize(("smoothing", "tolerance"), [(1.0, 0.02), (0.75, 0.8)])
def test_equal_time_chunks_take_equal_time(smoothing: float, tolerance: float) -> None:
    spec = {"policy": "equal-time", "chunk": 16384, "smoothing": smoothing, "minimum": 0}
    plan = chunk_plan(make_policy(spec, law=LAW, ranks=1), 200_000, limit=65536)
    times = [
        LAW.chunk_seconds(x, at) for x, at in zip(plan, accumulate(plan, initial=0), strict=False)
    ][:-1]
    assert max(times) / min(times) < 1 + tolerance
    assert list(plan) == sorted(plan, reverse=True)


def test_equal_time_respects_its_minimum_and_rounds_down() -> None:
    spec = {"policy": "equal-time", "chunk": 16384}
    plan = chunk_plan(make_policy(spec, law=LAW, ranks=1), 1_000_000, limit=65536)
    assert min(plan[:-1]) >= 16384 // 4
    assert all(size % 64 == 0 for size in plan[:-1])


def test_online_variant_rounds_up_to_multiples_of_64() -> None:
    policy = make_policy(
        {"policy": "equal-time-online", "chunk": 16384, "minimum": 1000}, law=LAW, ranks=1
    )
    plan = chunk_plan(policy, 150_000, limit=65536)
    assert all(size % 64 == 0 for size in plan[:-1])
    assert plan[0] == 16384
    assert min(plan[:-1]) >= 1024


def test_equal_flops_chunks_do_equal_work() -> None:
    plan = chunk_plan(
        make_policy({"policy": "equal-flops", "chunks": 8}, law=LAW, ranks=1),
        131_072,
        limit=131_072,
    )
    work = [
        LAW.work(end) - LAW.work(end - x) for x, end in zip(plan, accumulate(plan), strict=True)
    ]
    assert len(plan) == 8
    assert max(work) / min(work) < 1.02


def test_ramp_times_fall_by_equal_steps_to_the_end_and_stay_below_the_peak() -> None:
    spec = {"policy": "ramp", "peak": 16384, "down": 4, "up": 1}
    plan = chunk_plan(make_policy(spec, law=LAW, ranks=1), 262_144, limit=65536, block=1)
    times = [
        LAW.work(end) - LAW.work(end - x) for x, end in zip(plan, accumulate(plan), strict=True)
    ]
    last = times[-1]
    assert [t / last for t in times[-4:]] == pytest.approx([4, 3, 2, 1], rel=1e-2)
    assert plan[0] == 8192
    peak = LAW.work(sum(plan[:-4]) + 16384) - LAW.work(sum(plan[:-4]))
    assert peak / last == pytest.approx(5, rel=1e-2)


def test_dp_beats_every_cut_on_its_grid() -> None:
    law = QuadraticCost(c0=3.0, b=1e-3, a=1e-6)
    length, step, ranks = 4096, 512, 3
    policy = make_policy({"policy": "dp"}, law=law, ranks=ranks)
    found = chunk_plan(policy, length, limit=length, block=step)

    def value(plan: tuple[int, ...]) -> float:
        times = [
            law.c0 + law.chunk_seconds(x, at)
            for x, at in zip(plan, accumulate(plan, initial=0), strict=False)
        ]
        return sum(times) + (ranks - 1) * max(times)

    grid = range(step, length, step)
    cuts = (c for n in range(len(grid) + 1) for c in combinations(grid, n))
    best = min(value(tuple(b - a for a, b in pairwise([0, *cut, length]))) for cut in cuts)
    assert value(found) <= best * 1.03  # candidates for the longest chunk lie 3% apart


@pytest.mark.parametrize(
    ("spec", "fragment"),
    [
        ({}, "policy=None"),
        ({"policy": "magic"}, "equal-flops"),
        ({"policy": "fixed"}, "needs chunk"),
        ({"policy": "fixed", "chunk": 0}, "chunk=0"),
        ({"policy": "fixed", "chunk": True}, "chunk=True"),
        ({"policy": "fixed", "chunk": 5, "size": 3}, "takes chunk"),
        ({"policy": "ramp", "peak": 5, "law": 3}, "law=3"),
        ({"policy": "hybrid", "peak": 5, "threshold": 2}, "from 0 to 1"),
        ({"policy": "token-throttle", "reserve": 1}, "less than 1"),
        ({"policy": "by-length"}, "list of [length in tokens, policy]"),
        ({"policy": "by-length", "entries": [[0, {"policy": "dp"}]]}, "list of [length"),
        ({"policy": "by-length", "entries": [[9, {"policy": "dp"}]] * 2}, "each length once"),
        ({"policy": "by-length", "entries": [[9, {"policy": "fixed"}]]}, "needs chunk"),
        ({"policy": "ramp", "peak": 5, "ranks": 3}, "takes peak"),
        ({"policy": "equal-time", "chunk": 5, "smoothing": 2}, "from 0 to 1"),
        ({"policy": "list", "chunks": []}, "list of whole numbers"),
        ({"policy": "list", "chunks": [5, -5]}, "list of whole numbers"),
    ],
)
def test_bad_policies_are_one_clear_line(spec: dict[str, Any], fragment: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_policy(spec, law=LAW, ranks=2)
    assert fragment in str(error.value)
    assert "\n" not in str(error.value)


def test_a_planned_policy_without_a_law_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a cost model"):
        make_policy({"policy": "ramp", "peak": 4096}, law=None, ranks=2)


def sliding(window: int) -> MarginalCost:
    """Every other layer sees `window` tokens only."""
    bend = Knot(window, LAW.b + LAW.a * window)
    end = Knot(1 << 20, bend.seconds + LAW.a / 2 * ((1 << 20) - window))
    return MarginalCost(c0=LAW.c0, knots=(Knot(0, LAW.b), bend, end))


def test_hybrid_times_grow_linearly_where_the_law_bends() -> None:
    law = sliding(16_384)
    spec: dict[str, Any] = {"peak": 8192, "down": 0, "up": 0}
    spread = {}
    for name, planned_with in (("hybrid", law), ("ramp", LAW)):
        policy = make_policy({"policy": name} | spec, law=planned_with, ranks=1)
        plan = chunk_plan(policy, 131_072, limit=65_536, block=1)
        times = [
            law.chunk_seconds(x, at)
            for x, at in zip(plan, accumulate(plan, initial=0), strict=False)
        ]
        bends = [a - 2 * b + c for a, b, c in zip(times, times[1:], times[2:], strict=False)]
        spread[name] = max(map(abs, bends)) / times[len(times) // 2]
    assert spread["hybrid"] < 1e-3
    assert spread["ramp"] > 0.01


def test_hybrid_is_a_ramp_where_the_law_does_not_bend() -> None:
    straight = MarginalCost(c0=LAW.c0, knots=(Knot(0, LAW.b), Knot(1e6, LAW.b + LAW.a * 1e6)))
    spec = {"peak": 8192, "down": 4, "up": 1}
    ramp = make_policy({"policy": "ramp"} | spec, law=LAW, ranks=1)
    hybrid = make_policy({"policy": "hybrid"} | spec, law=straight, ranks=1)
    assert chunk_plan(ramp, 262_144, limit=1 << 20) == chunk_plan(hybrid, 262_144, limit=1 << 20)


def test_a_prompt_planned_anew_gets_no_second_run_up() -> None:
    policy = make_policy({"policy": "ramp", "peak": 8192, "down": 2, "up": 2}, law=LAW, ranks=1)
    view = View(50_000, 100_000, 1 << 20, start=50_000)
    assert next_chunk(policy, view) < 4096
    assert next_chunk(policy, view._replace(begun=True)) > 7000


def test_token_throttle_takes_a_share_of_what_waits_while_the_cache_has_room() -> None:
    policy = make_policy({"policy": "token-throttle", "reserve": 0.2}, law=None, ranks=4)
    view = View(0, 50_000, 1 << 20, waiting=40_000)
    assert policy.size(view) == 50_000 // 8
    assert policy.size(view._replace(waiting=400_000)) == 8192
    assert policy.size(view._replace(free_fraction=0.6)) == 4096
    assert policy.size(view._replace(free_fraction=0.2)) == 1
    assert policy.size(View(0, 100, 1 << 20, waiting=100)) == 32


def test_token_throttle_spreads_decodes_evenly_with_a_rotating_remainder() -> None:
    policy = TokenThrottle(ranks=4, decodes=512)
    assert [policy.decode_budget(10, step) for step in range(5)] == [3, 3, 2, 2, 3]
    assert policy.decode_budget(5000, 0) == 512


def test_by_length_takes_the_nearest_and_scales_the_peak_between_two() -> None:
    entries = [
        [2048, {"policy": "fixed", "chunk": 2048}],
        [16_384, {"policy": "ramp", "peak": 2000}],
        [65_536, {"policy": "ramp", "peak": 4000}],
    ]
    policy = make_policy({"policy": "by-length", "entries": entries}, law=LAW, ranks=2)
    assert isinstance(policy, ByLength)
    assert policy.for_length(1000) == Fixed(chunk=2048)
    assert policy.for_length(3000) == Fixed(chunk=2048)
    between = policy.for_length(32_768)
    assert isinstance(between, Ramp)
    assert between.peak == pytest.approx(2828, abs=1)
    beyond = policy.for_length(1 << 20)
    assert isinstance(beyond, Ramp)
    assert beyond.peak == 4000


def test_a_plan_for_a_million_tokens_takes_milliseconds() -> None:
    policy = make_policy({"policy": "ramp", "peak": 16_384, "down": 8}, law=LAW, ranks=8)
    began = time.perf_counter()
    next_chunk(policy, View(0, 1 << 20, 1 << 20))
    assert time.perf_counter() - began < 0.05  # 5 ms is the aim; a busy machine may take longer
