"""How long a prompt the demonstration takes on machines of different speed."""

import pytest

from vllm_vpp.bench.demo import LONGEST, affordable


def test_a_fast_machine_takes_the_whole_prompt() -> None:
    assert affordable(4096, 8.0, runs=10) == LONGEST


@pytest.mark.parametrize("seconds", [12.0, 20.0, 28.0])
def test_a_slower_machine_takes_as_much_of_it_as_fits(seconds: float) -> None:
    tokens = affordable(4096, seconds, runs=10)
    assert 4096 < tokens < LONGEST
    assert tokens % 1000 == 0
    assert affordable(tokens, 80.0, runs=10) == tokens, "what takes its share is left as it is"
    assert affordable(tokens, 81.0, runs=10) < tokens


def test_more_runs_leave_shorter_prompts() -> None:
    assert affordable(4096, 20.0, runs=20) < affordable(4096, 20.0, runs=10)


def test_no_prompt_is_too_short_to_show_anything() -> None:
    assert affordable(4096, 1000.0, runs=10) == 4000
