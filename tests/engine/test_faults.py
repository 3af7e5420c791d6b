"""What a server leaves behind when one of its processes is killed, and when the disk is full."""

import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from engine_runs import Engine, V, outputs, prompt, stock
from served import Server, body, complete, left_behind, serve, wait_for_end

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

GONE_S = 30.0
KILLS = int(os.environ.get("SOAK_KILLS", "100"))  # of which the first three are no soak
VICTIMS = ("engine core", "api server", "worker")


class Point(NamedTuple):
    """What is killed, so long after clients began to ask; `which` of the workers, from 0 to 1.

    With `in_flight` 60 more messages are under way than vLLM's queue to the ranks holds.
    """

    victim: str
    after_s: float
    which: float
    in_flight: int

    def kill(self, server: Server) -> None:
        match self.victim:
            case "engine core":
                server.engine_core().kill()
            case "api server":
                server.process.kill()
            case "worker":
                workers = server.workers()
                workers[int(self.which * len(workers))].kill()


def points() -> Iterator[Any]:
    rng = random.Random(3)
    for number in range(max(KILLS, len(VICTIMS))):
        victim, in_flight = VICTIMS[number % 3], 5 if number % 2 else 60
        point = Point(victim, round(rng.uniform(0.0, 4.0), 2), rng.random(), in_flight)
        marks = [pytest.mark.soak] if number >= len(VICTIMS) else []
        name = f"{victim} after {point.after_s} s, {in_flight} in flight"
        yield pytest.param(point, id=name, marks=marks)


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder for the files of vLLM's sockets; their paths must be short."""
    folder = Path(tempfile.mkdtemp(prefix="vpp"))
    yield folder
    shutil.rmtree(folder)


def crowd() -> list[dict[str, Any]]:
    """Prompts that take seconds, and answers that are under way meanwhile."""
    long = [body(prompt(16_000, seed=300 + i), 8) for i in range(4)]
    decoding = [body(prompt(50, seed=310 + i), 600, stream=True) for i in range(4)]
    return [*decoding, *long]


class Outcome(NamedTuple):
    """What a client got, and when."""

    text: str
    at: float

    @property
    def answered(self) -> bool:
        return self.text == "answered"


def outcome(server: Server, request: dict[str, Any]) -> Outcome:
    try:
        tokens = complete(server, request)
    except (httpx.TransportError, AssertionError, KeyError) as error:
        return Outcome(repr(error), time.monotonic())
    full = len(tokens) == request["max_tokens"]
    return Outcome("answered" if full else f"{len(tokens)} tokens, no error", time.monotonic())


def listens(path: Path) -> bool:
    """Whether anybody still does; zmq leaves the file of a killed process's socket behind."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
    return True


@pytest.mark.parametrize("point", list(points()))
def test_a_killed_process_takes_all_others_with_it(
    point: Point, sockets: Path, tmp_path: Path
) -> None:
    places = {"VLLM_RPC_BASE_PATH": str(sockets), "TMPDIR": str(tmp_path)}
    deep = {**V, "in_flight": point.in_flight}
    with serve(Engine("llama", 2, deep, environment=places), tmp_path) as server:
        family, segments = server.family(), server.shared_memory()
        assert len(server.workers()) == 2
        assert segments
        assert any(map(listens, sockets.iterdir()))
        assert list(tmp_path.glob("*.board"))
        requests = crowd()
        with ThreadPoolExecutor(len(requests)) as pool:
            asking = [pool.submit(outcome, server, request) for request in requests]
            server.wait_for(lambda: server.metric("vllm:num_requests_running") > 0)
            time.sleep(point.after_s)
            killed = time.monotonic()
            point.kill(server)
            seconds = wait_for_end(server, family, GONE_S)
            outcomes = [one.result(60) for one in asking]
        print(f"{point}: all gone after {seconds:.1f} s; clients got {outcomes}")
        failed = [one for one in outcomes if not one.answered]  # full answers were given before
        assert len(failed) >= 2, "nobody was waiting"
        assert not any("no error" in one.text for one in failed), failed
        assert all(killed <= one.at < killed + GONE_S for one in failed), failed
        assert not left_behind(segments, 5)
        assert not [path for path in sockets.iterdir() if listens(path)]
        assert not left_behind(set(tmp_path.glob("*.board")), 5)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four pages."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a file system here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # a killed rank may linger


def test_a_full_disk_ends_the_trace_and_not_the_service(small_disk: Path, tmp_path: Path) -> None:
    vpp = {**V, "trace_dir": str(small_disk)}
    with serve(Engine("llama", 2, vpp), tmp_path) as server:
        with ThreadPoolExecutor(4) as pool:
            work = [body(prompt(2000, seed=i), 60) for i in range(4)]
            for made in pool.map(lambda request: complete(server, request), work):
                assert len(made) == 60
        expected = outputs(stock("llama")["alone"])[-2].tokens
        assert complete(server, body(prompt(2000), len(expected))) == expected
        log = server.log.read_text()
    written = sum(file.stat().st_size for file in small_disk.iterdir())
    assert 0 < written <= 16 * 1024
    said = [line for line in log.splitlines() if "recording stops, serving goes on" in line]
    speakers = [line.split(")")[0] for line in said]  # "(Worker_PP0 pid=12" and the like
    assert said, "nothing said that the disk is full"
    assert all("No space left" in line for line in said)
    assert len(set(speakers)) == len(speakers), said
