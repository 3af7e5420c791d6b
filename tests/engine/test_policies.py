"""Chunking, packing, learning and `auto` in a real engine: the answers of one rank throughout."""

import json
import statistics
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_runs import (
    CHUNK,
    GREEDY,
    LAYERS,
    MIXED,
    TOGETHER_BOUND,
    Engine,
    V,
    outputs,
    prompt,
    run,
    standard,
    stock,
)
from test_same_answers import chunks_by_request, largest_difference

from vllm_vpp.core.batch import MicroBatch
from vllm_vpp.core.timeline import SpanKind
from vllm_vpp.core.trace import Run, read_run

WARMING = 2  # micro-batches that pay for warming up

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

BOUND = TOGETHER_BOUND["llama"]
CONFIG = {"do": "config", "name": "config"}
FIXED_COST = {"c0": 0.02, "b": 1e-4, "a": 5e-8}


def recorded(vpp: dict[str, Any], folder: Path, steps: list[dict[str, Any]]) -> tuple[Any, Run]:
    """Answers and trace of an engine on two ranks that keeps what it learns in `folder`."""
    engine = Engine(
        "llama",
        2,
        {**vpp, "trace_dir": str(folder / "trace")},
        environment={"VLLM_CACHE_ROOT": str(folder / "cache")},
    )
    return run(engine, [*steps, CONFIG], 300), read_run(folder / "trace")


def together(*lengths: int, tokens: int = 4) -> dict[str, Any]:
    return {
        "do": "generate",
        "name": "together",
        "together": True,
        "prompts": [prompt(n, seed=5 + i) for i, n in enumerate(lengths)],
        "sampling": GREEDY | {"max_tokens": tokens},
    }


@pytest.mark.parametrize(
    ("layout", "chunking"),
    [
        ("auto", None),
        ("v", {"policy": "ramp"}),
        ("v", {"policy": "hybrid", "threshold": 0.0}),
        ("linear", {"policy": "token-throttle", "minimum": 64, "decodes": 2}),
        ("v", {"policy": "equal-time", "chunk": CHUNK}),
        ("linear", {"policy": "dp"}),
    ],
    ids=lambda value: value if isinstance(value, str) else str((value or {}).get("policy")),
)
def test_no_policy_changes_the_answers(
    layout: str, chunking: dict[str, Any] | None, tmp_path: Path
) -> None:
    vpp = {"layout": layout} if chunking is None else {"layout": layout, "chunking": chunking}
    lengths = (1, 513, 2000)
    answers, _ = recorded(vpp, tmp_path, standard(lengths, MIXED))
    reference = stock("llama")
    alone = [outputs(reference["alone"])[(0, 5, 6)[i]] for i in range(len(lengths))]
    assert largest_difference(outputs(answers["alone"]), alone) <= BOUND
    for name in ("together", "one prefix"):
        assert largest_difference(outputs(answers[name]), outputs(reference[name])) <= BOUND


def test_what_was_learned_is_kept_for_the_next_start(tmp_path: Path) -> None:
    vpp = {"layout": "v", "chunking": {"policy": "ramp", "peak": CHUNK}}
    steps = [together(9000, 9000)]  # some 34 observations: 16 make a law, a few may be lost
    first, learned_from = recorded(vpp, tmp_path, steps)
    assert "law" not in first["config"]["vpp"]["resolved"]
    (file,) = (tmp_path / "cache" / "vpp").glob("*.json")
    kept = json.loads(file.read_text())
    assert kept["law"]["b"] > 0
    assert file.stat().st_mode & 0o077 == 0 or file.parent.stat().st_mode & 0o077 == 0
    second, trace = recorded(vpp, tmp_path, steps)
    assert second["config"]["vpp"]["resolved"]["law"] == pytest.approx(kept["law"])
    assert trace.law.b == pytest.approx(kept["law"]["b"])
    assert [o.tokens for o in outputs(second["together"])] == [
        o.tokens for o in outputs(first["together"])
    ]
    # against the run that it was learned from: other tests may slow down one run and not the next
    timeline = learned_from.timeline
    measured: Counter[int] = Counter()
    for span in timeline.spans:
        if span.kind is SpanKind.COMPUTE:
            measured[span.micro_batch] += span.end_ns - span.start_ns
    prefill = [batch for batch in timeline.micro_batches if batch.tokens > 64][WARMING:]
    ratios = [trace.law.seconds(batch) / (measured[batch.index] * 1e-9) for batch in prefill]
    assert len(ratios) > 8
    assert statistics.median(ratios) == pytest.approx(1.0, abs=0.5)


def test_nothing_is_learned_where_the_cost_is_given(tmp_path: Path) -> None:
    vpp = {"layout": "v", "chunking": {"policy": "ramp", "peak": CHUNK}, "cost": FIXED_COST}
    recorded(vpp, tmp_path, [together(9000)])
    assert not (tmp_path / "cache" / "vpp").exists()


def first_of(run_: Run, request: str) -> MicroBatch:
    return next(
        m for m in run_.timeline.micro_batches if any(c.request == request for c in m.chunks)
    )


@pytest.mark.parametrize("packing", [True, False])
def test_packing_starts_the_next_prompt_before_the_first_token_of_the_current(
    packing: bool, tmp_path: Path
) -> None:
    vpp = {"layout": "v", "packing": packing, "cost": FIXED_COST}
    answers, trace = recorded(vpp, tmp_path, [together(4000, 4000, tokens=1)])
    requests = list(
        dict.fromkeys(c.request for m in trace.timeline.micro_batches for c in m.chunks)
    )
    assert len(requests) == 2
    last = max(m.index for m in trace.timeline.micro_batches if m.chunks[0].request == requests[0])
    began = trace.submitted_ns[first_of(trace, requests[1]).index]
    assert (began < trace.result_ns[last]) is packing
    assert len(outputs(answers["together"])) == 2


def test_token_throttling_spreads_a_prompt_over_its_iterations(tmp_path: Path) -> None:
    spec = {"policy": "token-throttle", "minimum": 32, "iterations": 4}
    _, trace = recorded({"layout": "linear", "chunking": spec}, tmp_path, [together(2000)])
    (chunks,) = chunks_by_request(trace)
    assert chunks[0] == 384, "a quarter of 2000, down to whole blocks of 128"
    assert len(set(chunks)) > 1


def test_auto_names_its_choice(tmp_path: Path) -> None:
    answers, trace = recorded({"layout": "auto", "prompts": [16_384]}, tmp_path, [together(3000)])
    found = answers["config"]["vpp"]["resolved"]
    assert trace.timeline.layout.sweeps == found["sweeps"]
    assert sum(found["layers"]) == LAYERS
    assert answers["config"]["max_concurrent_batches"] == 2 * found["sweeps"] + 1


def test_no_more_is_in_flight_beside_a_decode_than_in_a_plain_pipeline(tmp_path: Path) -> None:
    beside = {"do": "beside", "decoding": prompt(50, seed=61), "prompt": prompt(9000, seed=62)}
    _, trace = recorded({"layout": "v"}, tmp_path, [{**beside, "name": "beside"}])
    chunks = {m.index: m.chunks for m in trace.timeline.micro_batches}
    most = {}
    for index, at in trace.submitted_ns.items():
        before = [i for i in chunks if i < index and trace.result_ns[i] > at]
        if chunks.get(index) and any(c.tokens > 1 for i in before for c in chunks[i]):
            most[index] = len(before) + 1
    assert len(most) > 9000 // CHUNK
    assert max(most.values()) == 3, "two ranks and one"


@pytest.mark.slow
def test_requests_that_decode_get_their_tokens_in_time_beside_a_long_prompt(tmp_path: Path) -> None:
    """The law that the first engine learns is what the second one goes by."""
    options = {"max_num_batched_tokens": 1024}
    environment = {"VLLM_CACHE_ROOT": str(tmp_path / "cache")}
    beside = {"do": "beside", "decoding": prompt(50, seed=61), "prompt": prompt(16_000, seed=62)}
    steps = [together(12_000), {**beside, "name": "beside"}]
    vpp = {**V, "in_flight": 2}
    engine = Engine("llama", 2, vpp, caching=False, options=options, environment=environment)
    free = run(engine, steps, 300)
    usual = statistics.median(free["beside"]["gaps"])
    trace = tmp_path / "trace"
    vpp |= {"itl_target_ms": 600 * usual, "trace_dir": str(trace)}
    bound = run(replace(engine, vpp=vpp), steps, 300)
    found = statistics.median(bound["beside"]["gaps"])
    print(f"ITL beside a prompt: {usual * 1e3:.0f} ms, bound to 60% of it: {found * 1e3:.0f} ms")
    assert found < 0.85 * usual
    assert bound["beside"]["tokens"] == free["beside"]["tokens"]
    batches = read_run(trace).timeline.micro_batches
    mixed = [m for m in batches if {1} < {chunk.tokens for chunk in m.chunks}]
    assert len(mixed) > 16_000 / 1024 + 1, "no chunk was smaller"
