"""The paper's lengths have the published figures; the real trace is as it was."""

import statistics
from pathlib import Path

import pytest

from vllm_vpp.bench import mixed
from vllm_vpp.bench.workloads import conversation, paper_lengths, scaled
from vllm_vpp.errors import InputError


def test_lengths_have_the_five_published_figures() -> None:
    lengths = sorted(paper_lengths(500))
    assert lengths[0] == 7
    assert lengths[-1] == pytest.approx(122_710, rel=0.01)
    assert statistics.fmean(lengths) == pytest.approx(22_500, rel=0.01)
    assert statistics.median(lengths) == pytest.approx(10_000, rel=0.01)
    assert lengths[450] == pytest.approx(64_000, rel=0.01)


def test_few_lengths_are_like_many() -> None:
    few = paper_lengths(24)
    assert statistics.fmean(few) == pytest.approx(22_500, rel=0.02)
    assert few != sorted(few)
    assert few == paper_lengths(24)
    assert sorted(few) == sorted(paper_lengths(24, seed=1))
    assert few != paper_lengths(24, seed=1)


def test_the_conversation_keeps_its_arrivals_when_scaled() -> None:
    real = conversation()
    small = scaled(real, 16)
    assert len(real) == 46
    assert [r.arrival for r in small] == [r.arrival for r in real]
    assert real[-1].arrival == 12.0
    assert max(r.prompt for r in real) == 87_169
    assert [r.prompt for r in small] == [r.prompt // 16 for r in real]
    assert min(r.output for r in small) == 1


def test_a_trace_of_ones_own_is_measured_as_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vllm_vpp.bench.arms.checkpoint", lambda spec: tmp_path)
    path = tmp_path / "mine.jsonl"
    path.write_text(
        '{"timestamp": 500, "input_length": 1600, "output_length": 32}\n'
        '{"timestamp": 0, "input_length": 32}\n'
    )
    suite = mixed.suite_of_trace(path)
    arms, cases = suite.plan()
    assert suite.name == "mixed-mine"
    assert [arm.name for arm in arms] == [arm.name for arm in mixed.mixed()[0]]
    first, second = cases["mine"]
    assert (len(first.prompt), first.max_tokens, first.at) == (16, 1, 0.0)
    assert (len(second.prompt), second.max_tokens, second.at) == (100, 2, 0.5)
    path.write_text('{"timestamp": 0, "input_length": 200000}\n')
    with pytest.raises(InputError, match="more than 131072"):
        mixed.suite_of_trace(path)
