"""What a server leaves behind when one of its processes is killed, and when the disk is full."""

import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from engine_runs import Engine, V, outputs, prompt, stock
from served import Server, body, complete, left_behind, serve, wait_for_end

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

GONE_S = 30.0


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder for the files of vLLM's sockets; their paths must be short."""
    folder = Path(tempfile.mkdtemp(prefix="vpp"))
    yield folder
    shutil.rmtree(folder)


def ask(server: Server, answers: list[str]) -> None:
    try:
        request = body(prompt(16_000, 300), 8)
        answer = httpx.post(f"{server.url}/v1/completions", json=request, timeout=60)
        answers.append(str(answer.status_code))
    except httpx.TransportError as error:
        answers.append(repr(error))


def listens(path: Path) -> bool:
    """Whether anybody still does; zmq leaves the file of a killed process's socket behind."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
    return True


@pytest.mark.parametrize("victim", ["engine core", "api server"])
def test_a_killed_process_takes_all_others_with_it(
    victim: str, sockets: Path, tmp_path: Path
) -> None:
    engine = Engine("llama", 2, V, environment={"VLLM_RPC_BASE_PATH": str(sockets)})
    with serve(engine, tmp_path) as server:
        family, segments = server.family(), server.shared_memory()
        assert len(server.workers()) == 2
        assert segments
        assert any(map(listens, sockets.iterdir()))
        answers: list[str] = []
        asking = threading.Thread(target=ask, args=(server, answers))
        asking.start()
        time.sleep(1.0)
        assert server.metric("vllm:num_requests_running") == 1
        assert not answers
        (server.engine_core() if victim == "engine core" else server.process).kill()
        seconds = wait_for_end(server, family, GONE_S)
        print(f"{victim} killed: all gone after {seconds:.1f} s; the client got {answers}")
        asking.join(60)
        assert answers
        assert answers != ["200"]
        assert not left_behind(segments, 5)
        assert not [path for path in sockets.iterdir() if listens(path)]


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
