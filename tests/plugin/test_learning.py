"""Learning of costs can fail in any way, and nothing waits or fails with it."""

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.core.chunking import View, next_chunk
from vllm_vpp.core.cost import QuadraticCost
from vllm_vpp.plugin.law_file import LawFile
from vllm_vpp.plugin.message import Took
from vllm_vpp.plugin.pace import Pace
from vllm_vpp.plugin.settings import Cost, Resolved, Settings

pytestmark = pytest.mark.vllm

RAMP = {"policy": "ramp", "peak": 512, "down": 4}
LAW = QuadraticCost(c0=0.02, b=1e-4, a=5e-8)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "cache"))
    settings = Settings(cost=Cost(c0=0.02, b=1e-4, a=5e-8), learn=True, chunking=RAMP)
    resolved = Resolved(sweeps=2, layers=[1, 1, 1, 1], chunking=RAMP)
    return SimpleNamespace(
        additional_config={"vpp": settings.resolve(resolved).model_dump(exclude_none=True)},
        instance_id="learning",
        model_config=SimpleNamespace(
            compute_hash=lambda: "model", dtype="float32", max_model_len=32_768
        ),
        parallel_config=SimpleNamespace(pipeline_parallel_size=2, tensor_parallel_size=1),
        scheduler_config=SimpleNamespace(enable_chunked_prefill=True),
    )


def serve(pace: Pace, times: Any, micro_batches: int = 200) -> None:
    """Chunks of one long prompt after another; `times` draws nanoseconds of an action."""
    for index in range(micro_batches):
        pace.submitted(MicroBatch(index, (Chunk("r", index % 40 * 512, 512),)))
        pace.finished(index, [Took(stage, index, times(index)) for stage in (0, 3)])


@pytest.mark.parametrize(
    "times",
    [
        lambda index: 0,
        lambda index: -(10**9),
        lambda index: 10 ** (index % 18),
        lambda index: random.Random(index).randrange(1, 10**10),
        lambda index: 10**9 - 4_000_000 * index,
    ],
    ids=["none", "negative", "absurd", "noise", "faster and faster"],
)
def test_times_that_fit_no_law_leave_every_prompt_a_chunk(times: Any, config: Any) -> None:
    pace = Pace(config)
    serve(pace, times)
    if pace.policy is not None:
        for prefix in (0, 1000, 31_000):
            assert 1 <= next_chunk(pace.policy, View(prefix, 32_000, 512)) <= 512


@pytest.mark.parametrize("error", [RuntimeError, ValueError, np.linalg.LinAlgError])
def test_a_solver_that_fails_ends_nothing(
    error: type[Exception], config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise error("no solution")

    monkeypatch.setattr("scipy.optimize.nnls", fails)
    pace = Pace(config)
    serve(pace, lambda index: 10 ** (index % 18))
    assert pace.policy is None, "chunks are vLLM's own"


def test_ranks_that_never_tell_a_time_are_not_remembered_for_ever(config: Any) -> None:
    pace = Pace(config)
    for index in range(1000):
        pace.submitted(MicroBatch(index, (Chunk("r", 0, 512),)))
        pace.finished(index, [Took(0, index, 5)])
    assert len(pace._coming) <= 65
    assert len(pace._seconds) <= 65


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        '{"key": null}',
        '{"law": 3}',
        '{"law": {"c0": 0}}',
        '{"law": {"c0": 0, "b": "x", "a": 0, "gamma": 0}}',
        '{"law": {"c0": 0, "b": NaN, "a": 0, "gamma": 0}}',
        '{"law": {"c0": 0, "b": -1, "a": 0, "gamma": 0}}',
        '{"law": {"c0": Infinity, "b": 1, "a": 0, "gamma": 0}}',
    ],
)
def test_a_damaged_file_is_as_good_as_none(text: str, config: Any) -> None:
    file = LawFile(config)
    file.path.parent.mkdir(parents=True)
    if text.startswith('{"law"'):
        text = json.dumps(file._key).join(['{"key": ', ", " + text[1:]])
    file.path.write_text(text)
    assert file.load() is None


def test_a_kept_law_comes_back_and_another_models_does_not(config: Any) -> None:
    LawFile(config).save(LAW, {})
    assert LawFile(config).load() == LAW
    config.parallel_config.tensor_parallel_size = 2
    other = LawFile(config)
    other.path.write_text(next(other.path.parent.glob("*.json")).read_text())
    assert other.load() is None, "the law of another configuration"


def test_a_place_that_cannot_be_written_is_no_failure(config: Any, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    file = LawFile(config)
    assert file.load() is None
    file.save(LAW, {})
    assert file.load() is None
