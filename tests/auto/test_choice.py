"""The planner as an engine asks it."""

import json
import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from vllm_vpp.auto import Answer, Question, choose
from vllm_vpp.core.chunking import make_policy
from vllm_vpp.core.layout import Layout
from vllm_vpp.core.split import balanced_split

LAW = {"c0": 0.3, "b": 2.73e-4, "a": 1.755e-7}  # a CPU with matrix units: small chunks are dear


def question(**changes: Any) -> Question:
    splits = {s: list(balanced_split(Layout(2, s), 30)) for s in (1, 2, 3, 4)}
    asked = {
        "ranks": 2,
        "sweeps": [1, 2, 3, 4],
        "splits": splits,
        "families": ["fixed", "equal-time", "ramp"],
        "lengths": [1024, 4096, 16_384],
        "law": LAW,
        "limit": 8192,
    }
    return Question.model_validate(asked | changes)


def test_long_prompts_with_dear_chunks_get_a_folded_pipeline_and_a_ramp() -> None:
    answer = choose(question())
    assert answer.sweeps >= 2
    assert answer.gains[16_384] > 1.05
    assert all(gain > 0.99 for gain in answer.gains.values())
    assert answer.chunking is not None
    long = dict(answer.chunking["entries"])[16_384]
    assert long["policy"] == "ramp"
    assert "sooner than on the plain pipeline" in answer.reason
    assert "\n" not in answer.reason


def test_short_prompts_alone_leave_the_pipeline_plain() -> None:
    answer = choose(question(lengths=[256, 512], gap=0.01))
    assert answer.sweeps == 1
    assert "plain pipeline" in answer.reason


def test_a_dear_dispatch_speaks_for_fewer_sweeps() -> None:
    sweeps = [choose(question(gap=gap)).sweeps for gap in (1e-4, 0.5)]
    assert sweeps[1] < sweeps[0]


def test_a_given_layout_is_kept_and_only_its_chunks_are_planned() -> None:
    answer = choose(question(sweeps=[2], families=["ramp"]))
    assert answer.sweeps == 2
    assert answer.chunking is not None
    make_policy(answer.chunking, law=question().law.cost(), ranks=2)


def test_one_rank_has_nothing_to_choose() -> None:
    answer = choose(question(ranks=1, sweeps=[1], splits={1: [30]}))
    assert answer.sweeps == 1


def test_equal_questions_get_equal_answers() -> None:
    assert choose(question()) == choose(question())


def test_the_process_speaks_json() -> None:
    asked = question(lengths=[4096]).model_dump_json()
    shown = subprocess.run(
        [sys.executable, "-m", "vllm_vpp.auto"],
        input=asked,
        capture_output=True,
        text=True,
        check=True,
    )
    answer = Answer.model_validate(json.loads(shown.stdout))
    assert answer == choose(question(lengths=[4096]))


@pytest.mark.parametrize(
    "changes", [{"lengths": []}, {"law": {"c0": 0, "b": 0, "a": 0}}, {"limit": 0}, {"what": 1}]
)
def test_nonsense_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        question(**changes)


def test_every_further_sweep_has_to_gain_clearly() -> None:
    """Four sweeps of eight layers gain a little more than two, at a cost to who decodes."""
    splits = {1: [4, 4], 2: [2] * 4, 4: [1] * 8}
    law = {"c0": 0.018, "b": 2.64e-4, "a": 2.05e-7}
    asked = {"splits": splits, "law": law, "lengths": [2048, 4096], "limit": 2048}
    both, two, four = (choose(question(sweeps=s, **asked)) for s in ([1, 2, 4], [1, 2], [1, 4]))
    assert four.sweeps == 4
    assert sum(four.gains.values()) > sum(two.gains.values())
    assert both.sweeps == 2
