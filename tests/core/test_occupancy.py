"""Why ranks are idle: by hand, and as a partition of any timeline."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.core.intervals import length, merge
from vllm_vpp.core.layout import Layout
from vllm_vpp.core.metrics import PARTS, measure
from vllm_vpp.core.occupancy import Idle, occupancy
from vllm_vpp.core.requests import Seen, handovers, prefills, presence
from vllm_vpp.core.timeline import Span, SpanKind, Timeline

C, S, R, W = SpanKind.COMPUTE, SpanKind.SEND, SpanKind.RECV, SpanKind.WAIT


def timeline(batches: dict[int, list[Chunk]], *spans: Span, ranks: int = 2) -> Timeline:
    return Timeline(
        layout=Layout(ranks, 1),
        spans=tuple(sorted(spans, key=lambda s: s.start_ns)),
        micro_batches=tuple(MicroBatch(i, tuple(chunks)) for i, chunks in batches.items()),
        source="measured",
    )


def passed(index: int, start: int, middle: int, end: int) -> list[Span]:
    """A micro-batch on two ranks, a transfer of 2 in between; its receive was posted long ago."""
    return [
        Span(0, C, 0, index, start, middle),
        Span(0, S, 1, index, middle, middle + 2),
        Span(1, W, 1, index, 0, middle),
        Span(1, R, 1, index, middle, middle + 2),
        Span(1, C, 1, index, middle + 2, end),
    ]


DECODE = timeline(
    {0: [Chunk("a", 0, 10)], 1: [Chunk("a", 10, 1)]}, *passed(0, 0, 20, 40), *passed(1, 50, 60, 70)
)


def test_a_token_not_yet_computed_stalls_and_a_late_submission_is_the_hosts() -> None:
    """Rank 0 waits 18 for rank 1 (besides the transfer), then 10 for the engine to go on."""
    seen = Seen({0: 0, 1: 48}, {0: 41, 1: 71})
    first, last = occupancy(DECODE, seen)
    assert first.idle[Idle.STALL] == [(22, 40)]
    assert first.idle[Idle.HOST] == [(40, 50)]
    assert first.idle[Idle.DRAIN] == [(62, 70)]
    assert last.idle[Idle.FILL] == [(0, 20)]
    assert last.idle[Idle.HOST] == [(40, 50)], "no rank does anything"
    assert last.idle[Idle.STALL] == [(50, 60)]
    assert last.exposed == [(20, 22), (60, 62)]


def test_an_input_that_is_there_makes_waiting_the_hosts() -> None:
    spans = [*passed(0, 0, 20, 40), *passed(1, 20, 30, 70)]
    late = [s._replace(start_ns=55) if s[:4] == (1, C, 1, 1) else s for s in spans]
    _, last = occupancy(timeline({0: [Chunk("a", 0, 9)], 1: [Chunk("a", 9, 9)]}, *late))
    assert last.idle[Idle.HOST] == [(40, 55)]
    assert last.idle[Idle.STALL] == []


def test_without_any_request_every_rank_starves() -> None:
    apart = timeline(
        {0: [Chunk("a", 0, 10)], 1: [Chunk("b", 0, 10)]},
        *passed(0, 0, 20, 40),
        *passed(1, 90, 110, 130),
    )
    shown = [own.idle[Idle.STARVED] for own in occupancy(apart)]
    assert shown == [[(40, 90)]] * 2
    seen = Seen({0: 0, 1: 80}, {0: 45, 1: 131})
    assert presence(apart, seen) == [(0, 45), (80, 131)]
    assert [own.idle[Idle.STARVED] for own in occupancy(apart, seen)] == [[(45, 80)]] * 2
    metrics = measure(apart, seen)
    assert [rank.starved for rank in metrics.ranks] == pytest.approx([35e-9] * 2)


def test_the_bubble_between_prompts_is_the_drain_of_one_and_the_fill_of_the_next() -> None:
    apart = timeline(
        {0: [Chunk("a", 0, 10)], 1: [Chunk("b", 0, 10)]},
        *passed(0, 0, 20, 40),
        *passed(1, 90, 110, 130),
    )
    assert handovers(apart) == [(20, 40), (90, 112)]
    rank0, rank1 = measure(apart).ranks
    assert rank0.cross_request == pytest.approx(18e-9)  # 22 to 40
    assert rank1.cross_request == pytest.approx(20e-9)  # 90 to 110
    packed = timeline(
        {0: [Chunk("a", 0, 10)], 1: [Chunk("b", 0, 10)]},
        *passed(0, 0, 20, 40),
        *passed(1, 20, 38, 60),
    )
    assert handovers(packed) == [(20, 40)]
    assert measure(packed).mean("cross_request") == pytest.approx(0)


def test_decode_is_no_part_of_a_prefill() -> None:
    found = prefills(DECODE, Seen({0: -3, 1: 48}, {0: 41, 1: 71}))
    assert [(p.request, p.micro_batches, p.start_ns, p.end_ns) for p in found] == [
        ("a", (0,), -3, 41)
    ]


spans = st.builds(
    lambda rank, kind, stage, batch, start, lasts: Span(
        rank, kind, stage, batch, start, start + lasts
    ),
    *(st.integers(0, 2), st.sampled_from(SpanKind), st.integers(0, 2), st.integers(0, 4)),
    *(st.integers(0, 100), st.integers(0, 30)),
)
times = st.dictionaries(st.integers(0, 4), st.integers(-10, 140))


@given(drawn=st.lists(spans, max_size=25), submitted=times, result=times)
def test_compute_exposed_and_idle_partition_the_window(
    drawn: list[Span], submitted: dict[int, int], result: dict[int, int]
) -> None:
    batches = {
        0: [Chunk("a", 0, 5)],
        1: [Chunk("a", 5, 5), Chunk("b", 0, 3)],
        2: [Chunk("b", 3, 1)],
    }
    line = timeline(batches, *drawn, Span(0, C, 0, 0, 5, 6), ranks=3)
    for seen in (None, Seen(submitted, result)):
        for own in occupancy(line, seen):
            parts = [own.compute, own.exposed, *own.idle.values()]
            whole = merge(piece for part in parts for piece in part)
            assert sum(map(length, parts)) == line.end_ns - line.start_ns
            assert whole == [(line.start_ns, line.end_ns)]
        for rank in measure(line, seen).ranks:
            assert sum(getattr(rank, part) for part in PARTS) == pytest.approx(rank.makespan)
            assert rank.cross_request <= rank.bubble + 1e-15
