"""The same tokens and log-probabilities as stock vLLM on one rank.

Equal chunk boundaries (one prompt after the other): tokens identical, log-probabilities bitwise
equal. Prompts submitted together meet in different steps, so float32 sums run in another order:
tokens identical, log-probabilities within `TOGETHER_BOUND`. Every engine runs one thread per rank.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from engine_runs import (
    CHUNK,
    FAULTS,
    GREEDY,
    LENGTHS,
    MIXED,
    TOGETHER_BOUND,
    Engine,
    Output,
    TwoRanks,
    V,
    cases,
    crowd,
    outputs,
    prompt,
    run,
    standard,
    stock,
)

from vllm_vpp.core.chunking import chunk_plan, make_policy
from vllm_vpp.core.trace import Run, read_run
from vllm_vpp.sim.replay import decided_order, differences, measured_schedule

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


BLOCK = 128  # tokens of a KV block on the CPU backend
CACHING = {"llama", "qwen3-moe"}  # on a CPU vLLM switches it off for latent attention


def largest_difference(mine: Sequence[Output], reference: Sequence[Output]) -> float:
    """Largest difference of log-probabilities; tokens must be identical."""
    return max(differences_of(mine, reference))


def differences_of(mine: Sequence[Output], reference: Sequence[Output]) -> list[float]:
    """Differences of log-probabilities, token by token; tokens must be identical."""
    found: list[float] = []
    for a, b in zip(mine, reference, strict=True):
        assert a.tokens == b.tokens
        pairs = [*zip(a.logprobs, b.logprobs, strict=True)]
        if a.prompt_logprobs is not None and b.prompt_logprobs is not None:
            pairs += zip(a.prompt_logprobs, b.prompt_logprobs, strict=True)
        found += [abs(x - y) for x, y in pairs]
    return found


def assert_same(answers: dict[str, Any], architecture: str, *, caching: bool = True) -> None:
    reference = stock(architecture)
    first = outputs(answers["alone"])
    assert all(len(one.tokens) == GREEDY["max_tokens"] for one in first)
    assert len({tuple(one.tokens) for one in first}) == len(first), "outputs ignore the prompt"
    assert largest_difference(first, outputs(reference["alone"])) == 0
    assert largest_difference(outputs(answers["samplings"]), outputs(reference["samplings"])) == 0
    # once more: from the prefix cache where there is one
    again = outputs(answers["again"])
    assert [one.cached for one in first] == [0] * len(first)
    if caching:
        assert [o.cached for o in again] == [o.cached for o in outputs(reference["again"])]
        assert max(one.cached for one in again) > (CHUNK if architecture in CACHING else -1)
        assert largest_difference(again, outputs(reference["again"])) == 0
    else:
        assert max(one.cached for one in again) == 0
        assert largest_difference(again, outputs(reference["alone"])) == 0
    bound = TOGETHER_BOUND[architecture]
    for name in ("together", "one prefix"):
        assert largest_difference(outputs(answers[name]), outputs(reference[name])) <= bound


def test_v_on_two_ranks_answers_like_one_rank(two_ranks: TwoRanks) -> None:
    assert_same(two_ranks.answers, "llama")


@pytest.mark.parametrize("fault", FAULTS)
def test_the_comparison_notices(two_ranks: TwoRanks, fault: str) -> None:
    answers = two_ranks.answers
    before = outputs(answers["before"])
    assert True in answers[f"{fault}: inject"], "no worker took the fault"
    for healthy, faulty in zip(before, outputs(answers[fault]), strict=True):
        assert healthy.tokens != faulty.tokens
        assert healthy.logprobs != faulty.logprobs
    assert largest_difference(outputs(answers[f"{fault}: restored"]), before) == 0


def test_what_was_sent_is_let_go_of(two_ranks: TwoRanks) -> None:
    """The newest of each sweep may be held until the next one is sent."""
    assert max(two_ranks.answers["held"]) <= 4


def test_ranks_may_wait_for_input_for_years(two_ranks: TwoRanks) -> None:
    """They do so while the engine is idle; a group of gloo gives up after half an hour."""
    assert min(two_ranks.answers["waits"]) > 5 * 365 * 24 * 3600


def test_an_idle_engine_uses_no_cpu(two_ranks: TwoRanks) -> None:
    used = two_ranks.answers["idle"]
    assert sum("Worker" in name for name in used) == 2
    assert max(used.values()) < 0.05, used


def test_v_on_three_ranks_with_a_partition_and_no_prefix_cache() -> None:
    engine = Engine("llama", 3, V, caching=False, environment=partition("1,3,2,1,2,2"))
    answers = run(engine, [*cases("llama"), {"do": "config", "name": "config"}])
    assert answers["config"]["vpp"]["resolved"]["layers"] == [1, 3, 2, 1, 2, 2]
    assert_same(answers, "llama", caching=False)


def partition(text: str) -> dict[str, str]:
    return {"VLLM_PP_LAYER_PARTITION": text}


@pytest.mark.parametrize(
    ("ranks", "vpp"),
    [
        pytest.param(4, V, id="v on 4"),
        pytest.param(1, V, id="v on 1", marks=pytest.mark.slow),
        pytest.param(2, {"layout": "wave", "sweeps": 3}, id="wave of 3 sweeps on 2"),
        pytest.param(2, {"layout": "linear"}, id="linear on 2", marks=pytest.mark.slow),
        pytest.param(2, {**V, "order": "async"}, id="async v on 2", marks=pytest.mark.slow),
        pytest.param(2, {**V, "order": "vanilla"}, id="vanilla v on 2", marks=pytest.mark.slow),
        pytest.param(2, {**V, "in_flight": 2}, id="v on 2, two in flight", marks=pytest.mark.slow),
        pytest.param(2, {**V, "in_flight": 40}, id="v on 2, 40 in flight", marks=pytest.mark.slow),
    ],
)
def test_other_layouts_answer_like_one_rank(ranks: int, vpp: dict[str, Any]) -> None:
    assert_same(run(Engine("llama", ranks, vpp), cases("llama")), "llama")


@pytest.mark.parametrize(
    "vpp",
    [
        pytest.param(V, id="v"),
        pytest.param({"layout": "wave", "sweeps": 3}, id="wave of 3 sweeps"),
        pytest.param({"layout": "linear"}, id="linear"),
    ],
)
def test_asynchronous_scheduling_answers_like_one_rank(vpp: dict[str, Any], tmp_path: Path) -> None:
    steps = [
        {"do": "count_ahead", "name": "counting"},
        *cases("llama"),
        {"do": "ahead", "name": "ahead"},
    ]
    options, trace = {"async_scheduling": True}, tmp_path / "trace"
    answers = run(Engine("llama", 2, {**vpp, "trace_dir": str(trace)}, options=options), steps)
    assert answers["ahead"] > 100, "no decode step went ahead of its token"
    recorded = read_run(trace)
    decided = decided_order(recorded, "greedy")
    assert differences(decided, measured_schedule(recorded.timeline)) == []
    assert_same(answers, "llama")


@pytest.mark.parametrize("architecture", ["qwen3-moe", "deepseek-v3"])
@pytest.mark.parametrize(
    "ranks",
    [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)],
)
def test_other_architectures_answer_like_one_rank(architecture: str, ranks: int) -> None:
    assert_same(run(Engine(architecture, ranks, V), cases(architecture)), architecture)


@pytest.mark.parametrize(
    ("vpp", "ahead"),
    [
        pytest.param(V, False, id="v"),
        pytest.param(V, True, id="v, asynchronous"),
        pytest.param({"layout": "linear"}, False, id="linear", marks=pytest.mark.slow),
        pytest.param({"layout": "wave", "sweeps": 3}, False, id="wave", marks=pytest.mark.slow),
    ],
)
def test_preempted_requests_answer_like_one_rank(vpp: dict[str, Any], ahead: bool) -> None:
    """So few KV blocks that requests are preempted while micro-batches are in flight.

    Which requests meet in a step then depends on the room there is, for stock vLLM too: with 45
    blocks its own log-probabilities move by up to 8.8e-6, so each is compared with the nearer one.
    """
    steps = [
        {"do": "count_preemptions", "name": "counting"},
        crowd(),
        {"do": "preemptions", "name": "preemptions"},
    ]
    few = {"num_gpu_blocks_override": 75, "max_model_len": 2048, "async_scheduling": ahead}
    answers = run(Engine("llama", 2, vpp, options=few), steps)
    assert answers["preemptions"] > 0
    mine = outputs(answers["crowd"])
    references = [outputs(stock("llama")["crowd"]), stock_short_of_blocks()]
    each = [differences_of(mine, reference) for reference in references]
    nearer = [min(apart) for apart in zip(*each, strict=True)]
    assert len(nearer) == 8 * 140
    assert max(nearer) <= TOGETHER_BOUND["llama"]


@cache
def stock_short_of_blocks() -> list[Output]:
    """What stock vLLM answers the crowd on one rank with 45 KV blocks."""
    few = {"num_gpu_blocks_override": 45, "max_model_len": 2048}
    engine = Engine("llama", options=few, environment={"VLLM_PLUGINS": ""})
    return outputs(run(engine, [crowd()])["crowd"])


def test_more_micro_batches_in_flight_than_a_message_queue_holds() -> None:
    steps = [{"do": "generate", "name": "long", "prompts": [prompt(2000)], "sampling": GREEDY}]
    small = {"max_num_batched_tokens": 32, "max_model_len": 4096}
    answers = run(Engine("llama", 2, {**V, "in_flight": 60}, options=small), steps)
    reference = [outputs(stock("llama")["alone"])[LENGTHS.index(2000)]]
    assert largest_difference(outputs(answers["long"]), reference) <= TOGETHER_BOUND["llama"]


def test_a_chunking_policy_cuts_as_planned_and_answers_like_one_rank(tmp_path: Path) -> None:
    spec = {"policy": "ramp", "peak": CHUNK, "down": 4}
    vpp = {**V, "chunking": spec, "learn": False, "trace_dir": str(tmp_path / "trace")}
    lengths, mixed = (1, 513, 2000, 6000), MIXED
    answers = run(Engine("llama", 2, vpp), standard(lengths, mixed))
    alone = dict(zip(LENGTHS, outputs(stock("llama")["alone"]), strict=True))
    shared = [one for n, one in zip(lengths, outputs(answers["alone"]), strict=True) if n in alone]
    bound = TOGETHER_BOUND["llama"]
    assert largest_difference(shared, [alone[n] for n in lengths if n in alone]) <= bound
    again = largest_difference(outputs(answers["again"]), outputs(answers["alone"]))
    assert again <= bound
    for name in ("together", "one prefix"):
        assert largest_difference(outputs(answers[name]), outputs(stock("llama")[name])) <= bound
    recorded = read_run(tmp_path / "trace")
    policy = make_policy(spec, law=recorded.law, ranks=2)
    plan = chunk_plan(policy, 6000, limit=CHUNK, block=BLOCK)
    assert len(set(plan)) > 2, "a ramp has chunks of several sizes"
    assert plan in chunks_by_request(recorded)


def chunks_by_request(recorded: Run) -> list[tuple[int, ...]]:
    found: dict[str, list[int]] = {}
    for batch in recorded.timeline.micro_batches:
        for chunk in batch.chunks:
            if chunk.tokens > 1:
                found.setdefault(chunk.request, []).append(chunk.tokens)
    return [tuple(sizes) for sizes in found.values()]
