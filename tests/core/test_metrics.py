"""Metrics against sums done by hand, and identities that hold for any timeline."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.core.intervals import intersect, length, merge, subtract
from vllm_vpp.core.layout import Layout
from vllm_vpp.core.metrics import measure
from vllm_vpp.core.timeline import Span, SpanKind, Timeline
from vllm_vpp.errors import InputError

NS = 1e-9
C, S, R, W = SpanKind.COMPUTE, SpanKind.SEND, SpanKind.RECV, SpanKind.WAIT


def timeline(*spans: Span, layout: Layout | None = None) -> Timeline:
    batches = (MicroBatch(0, (Chunk("r", 0, 5),)), MicroBatch(1, (Chunk("r", 5, 5),)))
    return Timeline(
        layout=layout or Layout(2, 1), spans=spans, micro_batches=batches, source="measured"
    )


def test_one_rank_by_hand() -> None:
    """Window [0, 100]. Rank 1: fill 10, receive 5 exposed, compute, wait 10, receive, drain."""
    metrics = measure(
        timeline(
            Span(0, C, 0, 0, 0, 40),
            Span(0, S, 1, 0, 10, 15),
            Span(0, C, 0, 1, 40, 100),
            Span(0, S, 1, 1, 60, 65),
            Span(1, R, 1, 0, 10, 15),
            Span(1, C, 1, 0, 15, 50),
            Span(1, W, 1, 1, 50, 60),
            Span(1, R, 1, 1, 60, 65),
            Span(1, C, 1, 1, 70, 90),
        )
    )
    rank0, rank1 = metrics.ranks
    assert metrics.makespan == pytest.approx(100 * NS)
    assert (rank0.compute, rank0.bubble) == pytest.approx((100 * NS, 0))
    assert rank0.overlap_ratio == 1.0
    found = [
        getattr(rank1, k) / NS for k in ("compute", "exposed", "fill", "drain", "stall", "host")
    ]
    assert found == pytest.approx([55, 10, 10, 10, 10, 5])
    assert rank1.overlap_ratio == 0.0
    assert metrics.overlap_ratio == pytest.approx(0.5)
    assert metrics.limit / NS == pytest.approx(77.5)
    assert metrics.distance_to_limit == pytest.approx(100 / 77.5)
    assert metrics.bubble_ratio == pytest.approx((0 + 0.35) / 2)
    assert metrics.idle_ratio == pytest.approx(1 - (1.0 + 0.55) / 2)
    json.dumps(metrics.as_dict())


def test_overlap_ratio_is_absent_without_transfers() -> None:
    metrics = measure(timeline(Span(0, C, 0, 0, 0, 10), Span(1, C, 1, 0, 10, 20)))
    assert metrics.overlap_ratio is None
    assert metrics.ranks[0].overlap_ratio is None
    assert metrics.ranks[1].fill / NS == pytest.approx(10)


def test_a_rank_that_never_computes_fills_all_along() -> None:
    metrics = measure(timeline(Span(0, C, 0, 0, 0, 10)))
    assert metrics.ranks[1].fill / NS == pytest.approx(10)
    assert metrics.ranks[1].drain == 0


spans = st.builds(
    lambda rank, kind, start, lasts: Span(rank, kind, 0, 0, start, start + lasts),
    st.integers(0, 2),
    st.sampled_from(SpanKind),
    st.integers(0, 100),
    st.integers(0, 30),
)


@given(drawn=st.lists(spans, max_size=25))
def test_parts_sum_to_the_window_on_every_rank(drawn: list[Span]) -> None:
    drawn.append(Span(0, C, 0, 0, 5, 6))
    metrics = measure(timeline(*drawn, layout=Layout(3, 1)))
    for rank in metrics.ranks:
        total = rank.compute + rank.exposed + rank.bubble
        assert total == pytest.approx(metrics.makespan)
        assert min(rank.fill, rank.drain, rank.stall, rank.host, rank.exposed) >= 0
        assert rank.overlapped <= rank.transfer + 1e-18
        assert rank.exposed + rank.overlapped == pytest.approx(rank.transfer)


intervals = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12)


@given(left=intervals, right=intervals)
def test_interval_arithmetic_is_that_of_sets(
    left: list[tuple[int, int]], right: list[tuple[int, int]]
) -> None:
    def points(parts: list[tuple[int, int]]) -> set[int]:
        return {p for start, end in parts for p in range(start, end)}

    a, b = merge(left), merge(right)
    assert points(a) == points(left)
    assert points(intersect(a, b)) == points(a) & points(b)
    assert points(subtract(a, b)) == points(a) - points(b)
    assert length(a) == len(points(a))
    assert all(x[1] < y[0] for x, y in itertools.pairwise(a))


def test_timelines_round_trip_and_bad_json_is_refused() -> None:
    original = timeline(Span(0, C, 0, 0, 0, 10), Span(1, R, 1, 0, 10, 11))
    assert Timeline.from_json(original.to_json()) == original
    for text in ("", "{}", "[1]", '{"ranks": 2}', original.to_json()[:-5]):
        with pytest.raises(InputError, match="not a timeline"):
            Timeline.from_json(text)
    with pytest.raises(InputError, match="no compute span"):
        measure(timeline())
