"""analyze from the command line: recorded runs, profiles, comparison, files, bad input."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from vllm_vpp.cli import app
from vllm_vpp.core.metrics import PARTS, measure
from vllm_vpp.core.trace import read_run
from vllm_vpp.errors import InputError


def run(*words: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["analyze", *map(str, words)], env={"COLUMNS": "110"})
    assert result.exit_code == code, result.output + result.stderr
    return result


@pytest.fixture
def folders(tmp_path: Path, record: Any) -> tuple[Path, Path]:
    prompts = [40_000, 9_000]
    return (
        record(tmp_path / "CPP.trace", "linear", prompts),
        record(tmp_path / "VPP.trace", "v", prompts),
    )


def test_json_has_every_part_and_the_parts_sum(folders: tuple[Path, Path]) -> None:
    data = json.loads(run(folders[1], "--json").stdout)
    (shown,) = data["runs"]
    assert shown["name"] == "VPP"
    for rank in shown["metrics"]["ranks"]:
        assert sum(rank[part] for part in PARTS) == pytest.approx(rank["makespan"])
    timeline = read_run(folders[1]).timeline
    assert shown["metrics"]["steps"] == len(timeline.micro_batches)
    assert shown["metrics"]["transfers"] == 2 * len(timeline.micro_batches)
    assert shown["sent_bytes"] == 2 * 8 * 49_000
    assert shown["tokens"] == 49_000
    assert len(shown["first_token_seconds"]) == 2
    assert data["comparison"] is None


def test_a_line_that_is_being_written_is_left_for_later(folders: tuple[Path, Path]) -> None:
    whole = read_run(folders[0])
    path = folders[0] / "rank0.jsonl"
    kept = path.read_text(encoding="ascii")
    path.write_text(kept + kept.splitlines()[-1][:-3], encoding="ascii")
    assert read_run(folders[0]) == whole
    path.write_text(kept + "[1,\n", encoding="ascii")
    with pytest.raises(InputError, match="not JSON"):
        read_run(folders[0])


def test_a_trace_without_sizes_has_no_bytes(folders: tuple[Path, Path]) -> None:
    for file in folders[0].glob("rank*.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        short = [line[:4] if line[0] == "s" else line for line in lines[1:]]
        file.write_text("".join(json.dumps(line) + "\n" for line in [lines[0], *short]))
    assert "bytes not recorded" in run(folders[0]).stdout
    assert json.loads(run(folders[0], "--json").stdout)["runs"][0]["sent_bytes"] is None


def test_the_table_shows_seconds_and_shares(folders: tuple[Path, Path]) -> None:
    text = run(folders[0]).stdout
    rank = measure(read_run(folders[0]).timeline, read_run(folders[0]).seen).ranks[1]
    for shown in (rank.compute, rank.fill, rank.drain, rank.stall):
        assert f"{shown:.3f} s" in text
        assert f"{shown / rank.makespan:.1%}" in text
    for word in ("overlap ratio", "cross-request bubble", "starved", "of the limit W/P"):
        assert word in text


def test_hardware_and_versions_of_a_recording_are_shown(folders: tuple[Path, Path]) -> None:
    facts = {"processor": "some <chip>", "torch": "2.13.0", "device": "2 x cpu"}
    (folders[1] / "machine.json").write_text(json.dumps(facts))
    assert "processor some <chip>, torch 2.13.0, device 2 x cpu" in run(folders[1]).stdout
    shown = json.loads(run(*folders, "--json").stdout)["runs"]
    assert [one["machine"] for one in shown] == [{}, facts]
    (folders[1] / "machine.json").write_text("[")
    assert "machine.json: not a JSON object" in run(folders[1], code=2).stderr


def test_two_runs_say_what_moved(folders: tuple[Path, Path]) -> None:
    text = run(*folders).stdout
    assert "What moved" in text
    cpp, vpp = (measure(read_run(f).timeline, read_run(f).seen) for f in folders)
    assert f"{vpp.mean('drain') - cpp.mean('drain'):+.3f}" in text
    gained = cpp.makespan - vpp.makespan
    assert gained > 0
    assert f"VPP is {gained:.3f} s shorter than CPP" in text
    compared = json.loads(run(*folders, "--json").stdout)["comparison"]
    parts = [row["values"] for row in compared["rows"] if row["is_part"]]
    assert sum(v - c for c, v in parts) == pytest.approx(vpp.makespan - cpp.makespan)


def test_trace_is_one_that_perfetto_reads(folders: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "x.trace.json"
    run(folders[1], "--trace", out)
    events = json.loads(out.read_text())["traceEvents"]
    assert {"M", "X", "s", "f"} == {event["ph"] for event in events}


@pytest.fixture
def profiles(tmp_path: Path) -> list[Path]:
    paths = []
    for rank in range(2):
        events = [
            {
                "ph": "X",
                "cat": "kernel",
                "name": name,
                "pid": 0,
                "tid": 7,
                "ts": start,
                "dur": lasts,
            }
            for name, start, lasts in (
                ("flash_fwd_kernel", 0 if rank else 500_000, 1_500_000),
                ("ncclDevKernel_SendRecv", 1_000_000, 800_000 + 200_000 * rank),
            )
        ]
        data = {"traceEvents": events, "distributedInfo": {"rank": rank}}
        path = tmp_path / "profiles" / f"r{rank}.pt.trace.json.gz"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(json.dumps(data).encode()))
        paths.append(path)
    return paths


def test_profiles_of_any_vllm_are_broken_down(profiles: list[Path]) -> None:
    text = run(*profiles).stdout
    assert "operator groups" in text
    assert "attention" in text
    assert "rank 0: communication 0.800 s, overlap ratio 100.0%" in text
    assert "rank 1: communication 1.000 s, overlap ratio 50.0%" in text
    (found,) = json.loads(run(*profiles, "--json").stdout)["profiles"]
    assert [r["groups"]["attention"]["seconds"] for r in found["ranks"]] == [1.5, 1.5]
    assert run(profiles[0].parent, "--json").stdout == run(*profiles, "--json").stdout.replace(
        '"name": "profile"', '"name": "profiles"'
    )


def test_two_folders_of_profiles_are_compared(profiles: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for path in profiles:
        data = json.loads(gzip.decompress(path.read_bytes()))
        data["traceEvents"][1]["dur"] += 1_000_000
        (other / path.name.removesuffix(".gz")).write_text(json.dumps(data))
    text = run(profiles[0].parent, other).stdout
    assert "other is 1.000 s longer than profiles: exposed communication +" in text


@pytest.mark.parametrize("category", ["cpu_op", "python_function"])
def test_the_front_ends_trace_in_a_folder_is_no_rank(profiles: list[Path], category: str) -> None:
    """As `vllm serve` leaves it: beside the ranks', with operators or without."""
    folder = profiles[0].parent
    alone = run(folder, "--json").stdout
    event = {"ph": "X", "cat": category, "name": "aten::empty", "ts": 0, "dur": 9_000_000}
    path = folder / "host_7.async_llm.123.pt.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": [event]}).encode()))
    assert run(folder, "--json").stdout == alone


def test_a_folder_of_traces_without_ranks_keeps_them_all(profiles: list[Path]) -> None:
    for path in profiles:
        data = json.loads(gzip.decompress(path.read_bytes()))
        del data["distributedInfo"]
        path.write_bytes(gzip.compress(json.dumps(data).encode()))
    (found,) = json.loads(run(profiles[0].parent, "--json").stdout)["profiles"]
    assert [rank["file"] for rank in found["ranks"]] == [path.name for path in profiles]


BAD = {
    "nowhere": ["nowhere"],
    "no json": ["no.json"],
    "other json": ["other.json"],
    "damaged gz": ["damaged.json.gz"],
    "empty folder": ["empty"],
    "no kernels": ["nothing.json"],
    "folder of out file": ["run", "--trace", "nowhere/x.json"],
    "trace of two": ["run", "run", "--trace", "x.json"],
    "runs and profiles": ["run", "profile.json"],
    "results without timeline": ["results.json"],
    "damaged results": ["damaged.json"],
}


@pytest.mark.parametrize("words", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("command", ["analyze", "report"])
def test_bad_input_is_one_line_and_exit_code_two(
    command: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    if command == "report":
        words = ["--out" if word == "--trace" else word for word in words]
        if words.count("run") == 2:
            words = ["profile.json"]
    record(Path("run"), "v", [9000])
    Path("empty").mkdir()
    kernels = [{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 0, "dur": 5}]
    files = {
        "no.json": "{",
        "other.json": '{"a": 1}',
        "damaged.json.gz": "no gz",
        "nothing.json": '{"traceEvents": []}',
        "profile.json": json.dumps({"traceEvents": kernels}),
        "results.json": '{"timelines": [], "runs": []}',
        "damaged.json": '{"timelines": [{}], "runs": []}',
    }
    for name, text in files.items():
        Path(name).write_text(text)
    before = sorted(tmp_path.rglob("*"))
    result = CliRunner().invoke(app, [command, *words])
    assert result.exit_code == 2, result.output
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert result.stderr.startswith("vllm-vpp: ")
    assert result.stdout == ""
    assert sorted(tmp_path.rglob("*")) == before, "nothing half-written"


def test_one_request_of_a_recording(tmp_path: Path, record: Any) -> None:
    folder = record(tmp_path / "V", "v", [40_000, 9_000])
    whole = json.loads(run(folder, "--json").stdout)["runs"][0]
    last = json.loads(run(folder, "--request", "-1", "--json").stdout)["runs"][0]
    assert last["first_token_seconds"] == whole["first_token_seconds"][1:]
    run_of = read_run(folder)
    batches = run_of.timeline.micro_batches
    own = {b.index for b in batches if any(c.request == "r1" for c in b.chunks)}
    spans = [s for s in run_of.timeline.spans if s.kind == "compute" and s.micro_batch in own]
    window = max(s.end_ns for s in spans) - min(s.start_ns for s in spans)
    assert last["metrics"]["makespan"] == pytest.approx(window * 1e-9)
    assert last["metrics"]["makespan"] < whole["metrics"]["makespan"]
    text = run(folder, "--request", "2", code=2).stderr
    assert text == "vllm-vpp: --request 2: V has 2; must be 0 to 1, or -1 for the last\n"
