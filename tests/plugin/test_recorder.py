"""Traces stay within their limit and keep the newest records; torn edges are left out."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vllm_vpp.core.timeline import SpanKind
from vllm_vpp.core.trace import older, read_run

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm")

from vllm_vpp.plugin.recorder import Recorder  # noqa: E402 - needs vLLM

LIMIT = 6000  # bytes


@pytest.fixture
def whole(record: Callable[..., Path], tmp_path: Path) -> Path:
    """A recording of sixty chunks in files of any length."""
    return record(tmp_path / "whole", "v", [60 * 512], chunk=512)


def moments(records: list[list[Any]]) -> list[list[list[Any]]]:
    """What a process records at once: an action with its transfers, or one thing of the engine."""
    if not any(kind == "c" for kind, *_ in records):
        return [[one] for one in sorted(records, key=lambda one: one[-1])]
    found: dict[tuple[int, int], list[list[Any]]] = {}
    for one in sorted(records, key=lambda one: one[0]):  # compute comes first
        kind, stage, index = one[:3]
        found.setdefault((stage - (kind == "s"), index), []).append(one)
    return sorted(found.values(), key=lambda some: some[0][3])


def again(source: Path, folder: Path, limit: int, *, off: range = range(0)) -> None:
    """Record what `source` holds once more, with recording off for moments of some numbers."""
    folder.mkdir()
    for path in source.glob("*.jsonl"):
        header, *records = map(json.loads, path.read_text().splitlines())
        recorder = Recorder(str(folder), path.stem, header, limit)
        for number, some in enumerate(moments(records)):
            recorder.on = number not in off
            for one in some:
                recorder.add(*one)
            recorder.flush()
        recorder.close()


def sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def test_files_rotate_within_the_limit_and_keep_the_newest(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "rotated"
    again(whole, folder, LIMIT)
    found = sizes(folder)
    assert set(found) == {
        f"{n}.jsonl{o}" for n in ("engine", "rank0", "rank1") for o in ("", ".old")
    }
    for name in ("engine", "rank0", "rank1"):
        both = found[f"{name}.jsonl"] + found[f"{name}.jsonl.old"]
        assert LIMIT / 4 < both <= LIMIT
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    complete, kept = read_run(whole).timeline, read_run(folder).timeline
    assert 5 < len(kept.micro_batches) < 55
    assert kept.micro_batches == complete.micro_batches[-len(kept.micro_batches) :]
    numbers = {batch.index for batch in kept.micro_batches}
    expected = [s for s in complete.spans if s.micro_batch in numbers]
    assert [s for s in kept.spans if s.kind is SpanKind.COMPUTE] == [
        s for s in expected if s.kind is SpanKind.COMPUTE
    ]
    assert set(kept.spans) == set(expected)


def test_a_trace_below_the_limit_is_one_file(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "short"
    again(whole, folder, 2**20)
    assert not list(folder.glob("*.old"))
    assert read_run(folder).timeline == read_run(whole).timeline


def test_what_was_not_recorded_is_left_out_whole(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "switched"
    again(whole, folder, 2**20, off=range(40, 60))
    complete, kept = read_run(whole).timeline, read_run(folder).timeline
    assert 20 < len(kept.micro_batches) < len(complete.micro_batches)
    numbers = {batch.index for batch in kept.micro_batches}
    assert {span.micro_batch for span in kept.spans} == numbers
    for index in numbers:
        stages = {
            s.stage for s in kept.spans if s.micro_batch == index and s.kind is SpanKind.COMPUTE
        }
        assert len(stages) == kept.layout.stages


def test_an_older_file_of_an_earlier_run_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    older(path).write_text("of an earlier run")
    Recorder(str(tmp_path), "rank0", {"rank": 0}, LIMIT).close()
    assert not older(path).exists()
