"""Cost models: each against sums done by hand, and against data that it must recover."""

import json
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.core.chunking import make_policy
from vllm_vpp.core.cost import CostModel, QuadraticCost, StageCost
from vllm_vpp.core.layout import Layout
from vllm_vpp.core.timeline import Span, SpanKind, Timeline
from vllm_vpp.errors import InputError
from vllm_vpp.sim import Setup, at_once, simulate
from vllm_vpp.sim.analytic import AnalyticCost, Device, pairs
from vllm_vpp.sim.fitted import NAMES, Coefficient, FittedCost, Measured, fit
from vllm_vpp.sim.hardware import read_hardware, shipped_hardware
from vllm_vpp.sim.linearity import linearity
from vllm_vpp.sim.model import read_model
from vllm_vpp.sim.table import TableCost

GIGA = 1e9


def batch(*chunks: tuple[int, int]) -> MicroBatch:
    """(prefix, tokens) of each chunk."""
    return MicroBatch(0, tuple(Chunk(f"r{i}", p, x) for i, (p, x) in enumerate(chunks)))


@pytest.mark.parametrize(
    ("name", "total", "active", "cache", "boundary"),
    [
        ("qwen3-coder-30b-a3b", 30.5, 3.0, 98_304, 8_192),
        ("deepseek-v3.1", 671, 36.6, 70_272, 28_672),
        ("glm-5.2", 743, 40.3, 89_856, 24_576),
    ],
)
def test_shipped_models_have_their_published_sizes(
    name: str, total: float, active: float, cache: int, boundary: int
) -> None:
    """Active parameters count the head and not the embedding."""
    model = read_model(name)
    assert model.parameters / GIGA == pytest.approx(total, rel=0.002)
    assert model.active_parameters / GIGA == pytest.approx(active, rel=0.015)
    index_keys = 2 * sum(x.attention.index_dim for x in model.layers if x.attention.indexer)
    assert model.cache_bytes_per_token - index_keys == cache
    assert model.boundary_bytes_per_token == boundary


def test_stages_of_the_sparse_model_start_on_layers_with_an_indexer() -> None:
    assert sorted(read_model("glm-5.2").starts) == [0, 1, 2, *range(6, 78, 4)]
    assert len(read_model("deepseek-v3.1").starts) == 61


@given(
    tokens=st.integers(1, 60),
    prefix=st.integers(0, 90),
    most=st.one_of(st.none(), st.integers(1, 80)),
)
def test_pairs_counts_what_each_query_sees(tokens: int, prefix: int, most: int | None) -> None:
    """Half a token per query apart from counting one by one (a continuous triangle)."""
    seen = sum(min(prefix + q + 1, most or 10**9) for q in range(tokens))
    assert pairs(tokens, prefix, most) == pytest.approx(seen, abs=tokens / 2 + 1e-9)


def test_analytic_layer_is_the_sum_of_its_parts() -> None:
    """Qwen3-Coder on one H100 at full size: products, attention, launch, by hand."""
    model, hardware = read_model("qwen3-coder-30b-a3b"), read_hardware("h100")
    cost = AnalyticCost(model, Device(hardware), (48,))
    x, prefix = 8192, 65_536
    weights = 2048 * (32 * 128 + 2 * 4 * 128) + 32 * 128 * 2048 + 3 * 2048 * 768 * 8 + 2048 * 128
    products = 2 * weights * (x + hardware.half_tokens) / (hardware.flops * hardware.matmul)
    attention = 2 * 32 * 256 * x * (prefix + x / 2) / (hardware.flops * hardware.attention)
    expected = products + attention + hardware.layer_overhead
    found = cost.layer_seconds(model.layers[0], (Chunk("r", prefix, x),))
    assert found == pytest.approx(expected)


def test_a_decode_step_reads_the_weights_of_the_experts_it_meets() -> None:
    model, hardware = read_model("qwen3-coder-30b-a3b"), read_hardware("h100")
    cost = AnalyticCost(model, Device(hardware), (48,))
    seconds = cost.layer_seconds(model.layers[0], (Chunk("r", 10, 1),)) - hardware.layer_overhead
    read = 2 * (2048 * (32 * 128 + 2 * 4 * 128) + 32 * 128 * 2048 + 3 * 2048 * 768 * 8)
    products = seconds * hardware.memory_bandwidth
    floor = 2 * read / 2 * hardware.half_tokens / (hardware.flops * hardware.matmul)
    assert products >= read * 0.99
    assert seconds >= floor


def test_sliding_windows_and_top_k_bend_the_curve_and_full_attention_does_not() -> None:
    def tau(name: str) -> list[float]:
        model = read_model(name)
        cost = AnalyticCost(model, Device(read_hardware("h200"), 8), (len(model.layers),))
        return [cost.time(0, batch((k * 8192, 8192))) for k in range(24)]

    assert linearity(tau("qwen3-coder-30b-a3b"), 2).is_linear
    assert linearity(tau("deepseek-v3.1"), 8).is_linear
    sparse = tau("glm-5.2")
    growth = (sparse[-1] - sparse[0]) / (tau("deepseek-v3.1")[-1] - tau("deepseek-v3.1")[0])
    assert growth < 0.2, "top-k attention grows with its indexer only"


def test_window_layers_follow_the_config(tmp_path: Path) -> None:
    config = {
        "num_hidden_layers": 6,
        "hidden_size": 64,
        "vocab_size": 1000,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "sliding_window": 512,
    }
    path = tmp_path / "config.json"

    def windows(**extra: Any) -> list[int | None]:
        path.write_text(json.dumps(config | extra))
        return [layer.attention.window for layer in read_model(str(path)).layers]

    kinds = ["sliding_attention", "full_attention"] * 3
    assert windows(layer_types=kinds) == [512, None] * 3
    assert windows(sliding_window_pattern=3) == [512, 512, None] * 2
    assert windows(use_sliding_window=False) == [None] * 6
    assert windows(max_window_layers=4) == [None] * 4 + [512] * 2
    assert windows() == [512] * 6


@pytest.mark.parametrize("name", shipped_hardware())
def test_every_profile_says_where_its_numbers_come_from(name: str) -> None:
    assert read_hardware(name).sources


TRUE = {
    "action": 2e-3,
    "layer": 5e-4,
    "b": 1e-6,
    "a": 3e-12,
    "gamma": 0.0,
    "embed": 1e-7,
    "head": 4e-3,
}


def truth(split: tuple[int, ...]) -> FittedCost:
    return FittedCost(
        coefficients={name: Coefficient(TRUE[name], None) for name in NAMES},
        split=split,
        r_squared=1.0,
        spans=0,
    )


def recorded(layout: Layout, split: tuple[int, ...], *, noise: float = 0.0) -> Measured:
    """A run of the true model, as a recorder would see it."""
    setup = Setup(
        layout=layout,
        cost=truth(split),
        policy=make_policy({"policy": "fixed", "chunk": 4096}, law=None, ranks=layout.ranks),
    )
    timeline = simulate(at_once([131_072, 20_000]), setup).timeline()
    drawn = np.random.default_rng(7).normal(1, noise, len(timeline.spans))
    spans = tuple(
        s._replace(end_ns=s.start_ns + round((s.end_ns - s.start_ns) * max(f, 0.1)))
        for s, f in zip(timeline.spans, drawn, strict=True)
    )
    measured = Timeline(
        layout=layout, spans=spans, micro_batches=timeline.micro_batches, source="measured"
    )
    return Measured(measured, split)


def test_fit_recovers_the_model_that_made_the_data() -> None:
    found = fit([recorded(Layout(2, 2), (8, 7, 8, 7)), recorded(Layout(2, 1), (16, 14))])
    for name in NAMES:
        assert found.coefficients[name].value == pytest.approx(TRUE[name], rel=1e-3, abs=1e-9)
    assert found.r_squared > 0.99999


def test_fit_from_noisy_runs_predicts_another_layout() -> None:
    found = fit([recorded(Layout(2, 2), (8, 7, 8, 7), noise=0.05)])
    other = (10, 10, 10)
    wanted, got = truth(other), found.with_split(other)
    for prefix in (0, 50_000, 120_000):
        mb = batch((prefix, 4096))
        assert sum(got.times(mb)) == pytest.approx(sum(wanted.times(mb)), rel=0.04)
    a = found.coefficients["a"]
    assert a.error is not None
    assert abs(a.value - TRUE["a"]) < 4 * a.error


def test_fit_leaves_a_hiccup_out() -> None:
    timeline, split = recorded(Layout(2, 2), (8, 7, 8, 7), noise=0.02)
    spans = list(timeline.spans)
    spans[20] = spans[20]._replace(end_ns=spans[20].end_ns + 5_000_000_000)
    slow = Timeline(
        layout=timeline.layout,
        spans=tuple(spans),
        micro_batches=timeline.micro_batches,
        source="measured",
    )
    assert spans[20].kind is SpanKind.COMPUTE
    found = fit([Measured(slow, split)])
    assert found.left_out >= 1
    assert found.coefficients["b"].value == pytest.approx(TRUE["b"], rel=0.1)


def test_fit_needs_data() -> None:
    empty = Timeline(
        layout=Layout(1, 1),
        spans=(Span(0, SpanKind.COMPUTE, 0, 0, 0, 5),),
        micro_batches=(batch((0, 5)),),
        source="measured",
    )
    with pytest.raises(InputError, match="at least 8"):
        fit([Measured(empty, (3,))])
    with pytest.raises(InputError, match="has 1 stages"):
        fit([Measured(empty, (3, 3))])


def test_law_of_a_fit_is_its_whole_model_time() -> None:
    cost = truth((8, 7, 8, 7))
    law = cost.law()
    for prefix, x in ((0, 1), (0, 5000), (70_000, 333)):
        mb = batch((prefix, x))
        assert law.seconds(mb) == pytest.approx(sum(cost.times(mb)))


def table_of(law: QuadraticCost, layers: int, split: tuple[int, ...]) -> TableCost:
    chunks, prefixes = (256, 1024, 4096, 16_384), (0, 16_384, 65_536)
    per_layer = tuple(
        tuple((law.c0 + law.chunk_seconds(x, p)) / layers for p in prefixes) for x in chunks
    )
    return TableCost(
        chunks=chunks, prefixes=prefixes, seconds=(per_layer,), layers=(0,) * layers, split=split
    )


def test_table_is_exact_on_its_grid_and_close_between() -> None:
    law = QuadraticCost(c0=0.05, b=1e-5, a=1e-10)
    table = table_of(law, 12, (5, 7))
    for x in table.chunks:
        for prefix in table.prefixes:
            mb = batch((prefix, x))
            assert table.time(0, mb) == pytest.approx(law.seconds(mb) * 5 / 12)
    between = batch((30_000, 9000))
    assert sum(table.times(between)) == pytest.approx(law.seconds(between), rel=0.05)
    beyond = batch((200_000, 9000))
    assert sum(table.times(beyond)) == pytest.approx(law.seconds(beyond), rel=0.05)


def test_a_chunk_beyond_the_table_costs_what_its_pieces_cost() -> None:
    law = QuadraticCost(c0=0.0, b=1e-5, a=1e-10)
    table = table_of(law, 12, (12,))
    assert sum(table.times(batch((0, 65_536)))) == pytest.approx(law.work(65_536), rel=0.02)


def test_cost_files_round_trip() -> None:
    fitted, table = truth((8, 7)), table_of(QuadraticCost(c0=0.05, b=1e-5, a=0), 4, (2, 2))
    assert FittedCost.from_data(json.loads(fitted.to_json())) == fitted
    assert TableCost.from_data(json.loads(table.to_json())) == table


@pytest.mark.parametrize("kind", [FittedCost, TableCost])
def test_a_file_that_is_no_cost_model_is_refused(kind: Any) -> None:
    with pytest.raises(InputError, match="calibrate wrote"):
        kind.from_data({"kind": "other"})


@pytest.mark.parametrize(
    "cost",
    [
        StageCost.by_layers(QuadraticCost(c0=0.01, b=1e-5, a=1e-10), (3, 4, 5)),
        truth((3, 4, 5)),
        table_of(QuadraticCost(c0=0.05, b=1e-5, a=1e-10), 12, (3, 4, 5)),
        AnalyticCost(read_model("glm-5.2"), Device(read_hardware("h200"), 8), (20, 30, 28)),
    ],
    ids=["quadratic", "fitted", "table", "analytic"],
)
@settings(max_examples=50)
@given(chunks=st.lists(st.tuples(st.integers(0, 200_000), st.integers(1, 30_000)), max_size=3))
def test_models_agree_with_themselves_and_grow(
    cost: CostModel, chunks: list[tuple[int, int]]
) -> None:
    mb = batch(*chunks)
    times = cost.times(mb)  # type: ignore[attr-defined]
    assert [cost.time(s, mb) for s in range(3)] == pytest.approx(list(times))
    assert all(t >= 0 for t in times)
    longer = batch(*((p + 1000, x) for p, x in chunks))
    assert all(b >= a - 1e-12 for a, b in zip(times, cost.times(longer), strict=True))  # type: ignore[attr-defined]
    if not chunks:
        assert list(times) == [0, 0, 0]


def test_linearity_tells_a_line_from_a_bend() -> None:
    noise = np.random.default_rng(3).normal(0, 0.01, 32)
    line = linearity([1 + 0.5 * k + e for k, e in enumerate(noise)], 4)
    assert line.is_linear
    assert line.slope.low < 0.5 < line.slope.high
    bent = linearity([min(1 + 0.5 * k, 6.0) + e for k, e in enumerate(noise)], 4)
    assert not bent.is_linear
    assert bent.imbalance.value < 0
    assert "ever more slowly" in bent.verdict()
    with pytest.raises(InputError, match="at least 5"):
        linearity([1.0, 2.0], 2)


def test_predicted_imbalance_is_what_a_window_shows() -> None:
    """tau_k = 100 + k^2: rank 0 works on chunks n and n - (2P - 1), the turn on its neighbours."""
    ranks, count = 4, 41
    tau = [100.0 + k * k for k in range(count)]
    n = count // 2 + ranks  # so that the middle chunk is the window's centre, within half a chunk
    outer = tau[n] + tau[n - 2 * ranks + 1]
    inner = tau[n - ranks + 1] + tau[n - ranks]
    found = linearity(tau, ranks).imbalance.value
    assert found == pytest.approx((outer - inner) / inner, rel=0.05)


CONFIG: dict[str, Any] = {
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "vocab_size": 100,
    "num_attention_heads": 4,
    "intermediate_size": 256,
}


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": -5}, "hidden_size=-5"),
        ({"hidden_size": "64"}, "hidden_size='64'"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000"),
        ({"vocab_size": 0}, "vocab_size=0"),
        ({"num_key_value_heads": 3}, "must divide the heads"),
        ({"num_experts": 8, "num_experts_per_tok": 9}, "at most the 8 experts"),
    ],
)
def test_absurd_configs_are_one_clear_line(
    tmp_path: Path, change: dict[str, Any], fragment: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | change))
    with pytest.raises(InputError) as error:
        read_model(str(tmp_path))
    assert fragment in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "\u0000"])
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"give the model's config\.json"):
        read_model(str(path))


def test_unknown_names_list_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"deepseek-v3\.1, glm-5\.2, qwen3"):
        read_model("gpt-17")
    with pytest.raises(InputError, match="ascend-910c, b200"):
        read_hardware("abacus")
    path = tmp_path / "mine.json"
    path.write_text('{"flops": 1}')
    with pytest.raises(InputError, match="missing attention"):
        read_hardware(str(path))


def test_chunks_of_a_plan_cost_what_the_prompt_costs_plus_the_fixed_part() -> None:
    law = QuadraticCost(c0=0.25, b=1e-5, a=1e-10)
    plan = [1000, 3000, 500]
    times = [
        law.seconds(batch((at, x)))
        for x, at in zip(plan, accumulate(plan, initial=0), strict=False)
    ]
    assert sum(times) == pytest.approx(3 * law.c0 + law.work(4500))
