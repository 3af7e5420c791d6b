"""Tokens on their way from the micro-batch that samples them to the step that was ahead of them."""

from types import SimpleNamespace
from typing import Any

import pytest

from vllm_vpp.core.batch import Chunk
from vllm_vpp.plugin.message import Step

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm")


def step_of(
    new: dict[str, int], cached: dict[str, list[int]], finished: frozenset[str] = frozenset()
) -> Any:
    """A scheduler output: prompts by length, and known tokens of requests that decode one."""
    known = SimpleNamespace(
        req_ids=list(cached),
        new_token_ids=[list(tokens) for tokens in cached.values()],
        num_output_tokens=[1] * len(cached),
        resumed_req_ids=set(),
    )
    return SimpleNamespace(
        scheduled_cached_reqs=known,
        num_scheduled_tokens=new | dict.fromkeys(cached, 1),
        finished_req_ids=finished,
    )


def test_a_step_awaits_the_micro_batch_that_its_request_was_last_in() -> None:
    from vllm_vpp.plugin.ahead import Ahead

    ahead = Ahead()
    assert ahead.submitted(0, step_of({"a": 10, "b": 7}, {})) == {}
    assert ahead.submitted(1, step_of({"c": 5}, {"a": []})) == {"a": 0}
    assert ahead.submitted(2, step_of({}, {"a": [], "b": [3], "c": []})) == {"a": 1, "c": 1}
    assert ahead.submitted(3, step_of({}, {"b": []}, frozenset("a"))) == {"b": 2}
    assert ahead._newest.keys() == {"b", "c"}


def test_a_model_runner_is_told_what_a_scheduler_that_waits_would_say() -> None:
    from vllm_vpp.plugin.ahead import fill, tokens_of

    result = SimpleNamespace(
        req_id_to_index={"a": 1, "b": 0, "c": 2}, sampled_token_ids=[[5], [6], []]
    )
    assert tokens_of(result) == {"a": 6, "b": 5}
    output = step_of({"d": 4}, {"a": [], "b": [3]})
    fill(output, {"a": 6})
    assert output.scheduled_cached_reqs.new_token_ids == [[6], [3]]


def test_tokens_of_dropped_results_are_forgotten_where_a_request_starts_anew() -> None:
    from vllm_vpp.plugin.ahead import cut_dropped

    requests = {name: SimpleNamespace(output_token_ids=[1, 2, 3]) for name in "abc"}
    output = step_of({}, {"a": [1], "b": [1], "elsewhere": [1]})
    output.scheduled_cached_reqs.resumed_req_ids = {"a", "elsewhere"}
    cut_dropped(requests, output)
    kept = {name: request.output_token_ids for name, request in requests.items()}
    assert kept == {"a": [1], "b": [1, 2, 3], "c": [1, 2, 3]}


def test_a_step_that_is_told_a_token_awaits_the_others() -> None:
    step = Step(4, 2, (Chunk("a", 9, 1), Chunk("b", 9, 1)), b"", {"a": 2, "b": 3})
    told = step.knowing({"a": 7})
    assert (told.awaits, told.sampled) == ({"b": 3}, {"a": 7})
    told = told.knowing({"b": 8})
    assert (told.awaits, told.sampled) == ({}, {"a": 7, "b": 8})
    assert (told.index, told.chunks) == (step.index, step.chunks)
