"""bench from the command line: which suites, which files, bad input."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from vllm_vpp.bench.suite import Suite
from vllm_vpp.bench.suites import SUITES
from vllm_vpp.cli import app

measured: list[tuple[str, int, Any]] = []


@pytest.fixture(autouse=True)
def _pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_suite(
        suite: Suite, *, rounds: int, before: Any, **_: object
    ) -> Iterator[dict[str, Any]]:
        measured.append((suite.name, rounds, before))
        yield {"suite": suite.name}

    measured.clear()
    monkeypatch.setattr("vllm_vpp.bench.results.run_suite", run_suite)
    monkeypatch.chdir(tmp_path)


def run(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["bench", *words])
    assert result.exit_code == code, result.output + result.stderr
    return result


def test_named_suites_are_measured_into_a_file_each_and_go_on_from_it() -> None:
    run("tau", "mixed", "--rounds", "2")
    assert measured == [("tau", 2, None), ("mixed", 2, None)]
    assert json.loads(Path("results/tau.json").read_text()) == {"suite": "tau"}
    run("tau")
    assert measured[-1] == ("tau", SUITES["tau"].rounds, {"suite": "tau"})
    run("tau", "--fresh")
    assert measured[-1][2] is None


def test_all_suites_without_a_name_but_only_the_trace_with_one() -> None:
    run()
    assert [name for name, *_ in measured] == list(SUITES)
    measured.clear()
    Path("mine.jsonl").write_text('{"timestamp": 0, "input_length": 32}\n')
    run("--workload", "mine.jsonl", "--out", "own")
    assert [name for name, *_ in measured] == ["mixed-mine"]
    assert Path("own/mixed-mine.json").exists()
    run("tau", "--workload", "mine.jsonl")
    assert [name for name, *_ in measured] == ["mixed-mine", "tau", "mixed-mine"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["tua"], "suite 'tua': must be one of"),
        (["tau", "--rounds", "0"], "--rounds 0: must be at least 1"),
        (["--workload", "nowhere.jsonl"], "nowhere.jsonl: cannot be read"),
    ],
)
def test_bad_input_is_one_line_and_measures_nothing(words: list[str], text: str) -> None:
    shown = run(*words, code=2).stderr
    assert text in shown
    assert len(shown.strip().splitlines()) == 1
    assert measured == []
    assert not Path("results").exists()


def test_a_damaged_file_is_not_overwritten() -> None:
    Path("results").mkdir()
    Path("results/tau.json").write_text("{")
    assert "is not JSON" in run("tau", code=2).stderr
    assert Path("results/tau.json").read_text() == "{"
