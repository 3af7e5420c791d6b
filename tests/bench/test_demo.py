"""How long a prompt the demonstration takes on machines of different speed."""

import pytest

from vllm_vpp.bench.demo import LONGEST, affordable

CHUNK = 1536


def test_a_fast_machine_takes_the_whole_prompt() -> None:
    assert affordable(4096, 8.0, 10, CHUNK) == LONGEST


@pytest.mark.parametrize("seconds", [12.0, 20.0, 28.0])
def test_a_slower_machine_takes_as_much_of_it_as_fits(seconds: float) -> None:
    tokens = affordable(4096, seconds, 10, CHUNK)
    assert 4096 < tokens < LONGEST
    assert tokens % CHUNK == LONGEST % CHUNK, "the last chunk is as large"
    assert affordable(tokens, 80.0, 10, CHUNK) == tokens, "what takes its share is left as it is"
    assert affordable(tokens, 81.0, 10, CHUNK) == tokens - CHUNK


def test_more_runs_leave_shorter_prompts() -> None:
    assert affordable(4096, 20.0, 20, CHUNK) < affordable(4096, 20.0, 10, CHUNK)


def test_no_prompt_is_too_short_to_show_anything() -> None:
    assert 4000 < affordable(4096, 1000.0, 10, CHUNK) <= 4000 + CHUNK


def test_a_chunk_as_long_as_the_prompt_leaves_nothing_out() -> None:
    assert affordable(4096, 1000.0, 10, LONGEST) == LONGEST
