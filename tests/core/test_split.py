"""Layer splits against brute force over all splits."""

import time
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_vpp.core.layout import Layout
from vllm_vpp.core.split import balanced_split, even_split, rank_loads
from vllm_vpp.errors import ConfigError


def every_split(layers: int, stages: int, starts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for cuts in combinations([s for s in starts if 0 < s < layers], stages - 1):
        yield tuple(b - a for a, b in pairwise([0, *cuts, layers]))


@pytest.mark.parametrize(
    ("layers", "ranks", "sweeps", "expected"),
    [
        (30, 2, 2, (8, 7, 8, 7)),
        (48, 2, 2, (12, 12, 12, 12)),
        (8, 2, 1, (4, 4)),
        (7, 1, 1, (7,)),
        (4, 2, 2, (1, 1, 1, 1)),
    ],
)
def test_golden_splits(layers: int, ranks: int, sweeps: int, expected: tuple[int, ...]) -> None:
    assert balanced_split(Layout(ranks, sweeps), layers) == expected


def test_vllms_own_split_unbalances_the_ranks_of_a_v() -> None:
    layout = Layout(2, 2)
    assert even_split(30, 4) == (7, 8, 8, 7)
    assert rank_loads(layout, even_split(30, 4), [1] * 30, 0, 0) == (14, 16)
    assert rank_loads(layout, balanced_split(layout, 30), [1] * 30, 0, 0) == (15, 15)


@settings(max_examples=150)
@given(data=st.data())
def test_the_busiest_rank_has_the_smallest_possible_load(data: st.DataObject) -> None:
    ranks = data.draw(st.integers(1, 4))
    sweeps = data.draw(st.integers(1, 8 // ranks if ranks < 4 else 2))
    layout = Layout(ranks, sweeps)
    layers = data.draw(st.integers(layout.stages, 10))
    costs = data.draw(st.lists(st.integers(0, 9), min_size=layers, max_size=layers))
    first, last = data.draw(st.integers(0, 20)), data.draw(st.integers(0, 20))
    starts = data.draw(st.one_of(st.just(range(layers)), st.sets(st.integers(0, layers - 1))))
    splits = list(every_split(layers, layout.stages, sorted(starts)))

    def split() -> tuple[int, ...]:
        return balanced_split(
            layout, layers, layer_costs=costs, first_cost=first, last_cost=last, starts=starts
        )

    if not splits:
        with pytest.raises(ConfigError):
            split()
        return
    found = split()
    assert found in splits
    best = min(max(rank_loads(layout, s, costs, first, last)) for s in splits)
    assert max(rank_loads(layout, found, costs, first, last)) == best


def test_a_single_dear_layer_goes_to_the_rank_without_the_embedding() -> None:
    costs = [0.0] * 10
    costs[4] = 1.0
    layout = Layout(2, 4)
    split = balanced_split(layout, 10, layer_costs=costs, first_cost=1.0)
    assert rank_loads(layout, split, costs, 1.0, 0.0) == (1.0, 1.0)


def test_head_and_embedding_take_layers_off_their_ranks() -> None:
    split = balanced_split(Layout(2, 2), 30, first_cost=1.0, last_cost=3.0)
    loads = rank_loads(Layout(2, 2), split, [1.0] * 30, 1.0, 3.0)
    assert loads == (17.0, 17.0)
    assert split[3] < split[0]


def test_stages_start_only_where_the_model_allows() -> None:
    starts = [0, 1, 2, *range(6, 78, 4)]
    split = balanced_split(Layout(4, 2), 78, starts=starts)
    assert {sum(split[:k]) for k in range(8)} <= set(starts)


@pytest.mark.parametrize("layout", [Layout(8, 2), Layout(16, 1), Layout(4, 4), Layout(5, 3)])
def test_a_hundred_layers_over_sixteen_stages_take_milliseconds(layout: Layout) -> None:
    costs = [1.0 + (layer % 7) / 10 for layer in range(100)]
    began = time.perf_counter()
    balanced_split(layout, 100, layer_costs=costs)
    assert time.perf_counter() - began < 0.5  # 0.05 s alone; the machine may be busy


@pytest.mark.parametrize(
    ("layers", "options", "fragment"),
    [
        (3, {}, "layers=3"),
        (8, {"starts": [0, 1]}, "allowed starts=2"),
        (4, {"layer_costs": [1.0]}, "1 values for 4 layers"),
        (4, {"layer_costs": [1.0, 1.0, -1.0, 1.0]}, "-1.0"),
        (4, {"last_cost": float("nan")}, "nan"),
    ],
)
def test_bad_input_is_one_clear_line(layers: int, options: dict, fragment: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ConfigError) as error:
        balanced_split(Layout(2, 2), layers, **options)
    assert fragment in str(error.value)
    assert "\n" not in str(error.value)
