"""What is kept of a suite's runs, with engines that only pretend."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from vllm_vpp.bench import compare as comparing
from vllm_vpp.bench.engine import Arm, Reply, Request
from vllm_vpp.bench.results import run_suite
from vllm_vpp.bench.suite import Suite
from vllm_vpp.errors import InputError

STOCK = Arm(name="stock", model="/some/where/model", ranks=1, chunk=512, max_model_len=100)
PLAIN = replace(STOCK, name="plain", vpp={"layout": "v"}, record=False)
CASES = {"": [Request(prompt=[1, 2, 3]), Request(prompt=[4], max_tokens=2, at=0.5)]}
SECOND = 1_000_000_000


class Pretender:
    """An engine that answers request i after 2 + i seconds, and 0.25 s later again."""

    def __init__(self, arm: Arm, *, log: Path, trace_dir: Path | None, profile_dir: Any) -> None:
        self.arm, self.traced = arm, trace_dir

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait_ready(self) -> None:
        assert self.traced is None, "these arms are not to record"

    def peak_bytes(self) -> dict[str, int]:
        return {}

    def run(
        self,
        requests: Sequence[Request],
        *,
        measured: bool = True,
        watch: dict[str, bool] | None = None,
    ) -> list[Reply]:
        return [self._reply(i, r) for i, r in enumerate(requests)]

    def _reply(self, index: int, request: Request) -> Reply:
        sent = round(10 * SECOND + request.at * SECOND)
        first = sent + (2 + index) * SECOND
        times = tuple(first + i * SECOND // 4 for i in range(request.max_tokens))
        return Reply(sent_ns=sent, token_ns=times, tokens=(0,) * len(times), logprobs=())


@pytest.fixture(autouse=True)
def _pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "Engine", Pretender)


def suite() -> Suite:
    return Suite(name="s", title="t", rounds=2, plan=lambda: ([STOCK, PLAIN], CASES))


def run(tmp_path: Path, rounds: int, before: Any = None) -> Iterator[dict[str, Any]]:
    return run_suite(
        suite(), rounds=rounds, folder=tmp_path, command="c", tell=lambda _: None, before=before
    )


def test_arms_without_a_trace_have_the_clients_times_and_no_metrics(tmp_path: Path) -> None:
    *_, result = run(tmp_path, 2)
    assert len(result["runs"]) == 4
    for one in result["runs"]:
        assert one["ttft"] == [2.0, 3.0]
        assert one["seconds"] == pytest.approx(3.75)
        assert "metrics" not in one
        assert "operators" not in one
    assert result["control"] == {}
    assert result["arrivals"] == {"": [0.0, 0.5]}
    assert {arm["model"] for arm in result["arms"].values()} == {"model"}
    assert [kept["timeline"] for kept in result["timelines"]] == [None, None]


def test_the_run_kept_is_nearest_to_the_median_of_all_first_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = iter([1, 7, 3])  # seconds of the second request after the first, by round

    def pretend(
        self: Pretender, requests: Sequence[Request], *, measured: bool = True, **_: Any
    ) -> list[Reply]:
        replies = [self._reply(i, r) for i, r in enumerate(requests)]
        if measured:
            more = next(late) * SECOND
            times = tuple(t + more for t in replies[1].token_ns)
            replies[1] = replace(replies[1], token_ns=times)
        return replies

    monkeypatch.setattr(Pretender, "run", pretend)
    alone = replace(suite(), plan=lambda: ([STOCK], CASES))
    *_, result = run_suite(alone, rounds=3, folder=tmp_path, command="c", tell=lambda _: None)
    assert [r["ttft"][0] for r in result["runs"]] == [2.0, 2.0, 2.0]
    assert [kept["round"] for kept in result["timelines"]] == [2]


def test_missing_rounds_are_added_to_a_file_of_an_older_version(tmp_path: Path) -> None:
    *_, result = run(tmp_path, 1)
    older = json.loads(json.dumps(result))
    del older["machine"]["instructions"]
    for arm in older["arms"].values():
        del arm["profile"], arm["watch"]
        if arm["record"]:
            del arm["record"]
    *_, result = run(tmp_path, 3, older)
    assert [r["round"] for r in result["runs"] if r["arm"] == "stock"] == [0, 1, 2]
    assert list(run(tmp_path, 3, result)) == []


@pytest.mark.parametrize("name", ["arms", "prompt_tokens", "arrivals", "machine"])
def test_rounds_of_something_else_are_not_mixed_in(tmp_path: Path, name: str) -> None:
    *_, result = run(tmp_path, 1)
    other = json.loads(json.dumps(result))
    changed: Any = {} if name == "arms" else 1
    other[name] = {"x": changed}
    with pytest.raises(InputError, match=f"{name}: the result there"):
        list(run(tmp_path, 2, other))


def test_curves_that_no_engine_shows_are_timed_once_at_the_end(tmp_path: Path) -> None:
    told: list[str] = []

    def timed(tell: Callable[[str], object]) -> dict[str, list[float]]:
        tell("timing")
        return {"curve": [0.1, 0.2]}

    def measure(rounds: int, before: Any = None) -> list[dict[str, Any]]:
        own = replace(suite(), timed=timed)
        return list(
            run_suite(
                own, rounds=rounds, folder=tmp_path, command="c", tell=told.append, before=before
            )
        )

    *_, result = measure(1)
    assert result["timed"] == {"curve": [0.1, 0.2]}
    *_, more = measure(2, json.loads(json.dumps(result)))
    assert len(more["runs"]) == 4
    assert more["timed"] == result["timed"]
    assert told.count("timing") == 1
