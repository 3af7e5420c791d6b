"""A pipeline over two machines, with vLLM's own start-up: one command per node."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
from engine_runs import GREEDY, HERE, LENGTHS, Engine, V, outputs, prompt, run, stock
from hosts import Host, two_hosts

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

PORT = 29_641
PROMPTS = (1, 513, 2000)
STEPS: list[dict[str, Any]] = [
    {
        "do": "generate",
        "name": "alone",
        "prompts": [prompt(n) for n in PROMPTS],
        "sampling": GREEDY,
    }
]


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    with two_hosts() as pair:
        if pair is None:
            pytest.skip("may not make network namespaces here")
        yield pair


def on(host: Host, rank: int, first: Host, vpp: dict[str, Any]) -> Engine:
    """Our part of the engine on a host; each has one rank, on a core of its own."""
    cores = sorted(os.sched_getaffinity(0))
    environment = host.variables() | {
        "VLLM_CPU_OMP_THREADS_BIND": str(cores[rank % len(cores)]),
        "VLLM_LOGGING_LEVEL": "INFO",
    }
    nodes = {"nnodes": 2, "node_rank": rank, "master_addr": first.address, "master_port": PORT}
    return Engine("llama", 2, vpp, options=nodes, environment=environment)


def command(engine: Engine) -> list[str]:
    """What to run on a node without the engine: the same arguments, as options."""
    options = [sys.executable, str(HERE / "headless_node.py"), "--headless"]
    for name, value in engine.arguments().items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            options.append(flag if value else f"--no-{name.replace('_', '-')}")
        else:
            options += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return options


@contextlib.contextmanager
def follower(host: Host, engine: Engine, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*host.prefix(), *command(engine)],
            env=engine.variables(),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        family = family_of(process)
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def family_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(process.pid)
        return [parent, *parent.children(recursive=True)]
    return []


@pytest.mark.parametrize("vpp", [V, {"layout": "linear"}], ids=["v", "linear"])
def test_two_machines_answer_like_one_rank(
    vpp: dict[str, Any], hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    first, second = hosts
    log = tmp_path / "second.log"
    with follower(second, on(second, 1, first, vpp), log) as node:
        engine = on(first, 0, first, vpp)
        answers = run(engine, STEPS, limit_s=200, prefix=first.prefix())
        alone = dict(zip(LENGTHS, outputs(stock("llama")["alone"]), strict=True))
        for mine, length in zip(outputs(answers["alone"]), PROMPTS, strict=True):
            assert mine.tokens == alone[length].tokens
            assert mine.logprobs == alone[length].logprobs
        hidden = 128 * 4  # bytes of a token's hidden state, as much again for the residual
        assert first.sent_bytes() > sum(PROMPTS) * hidden
        began = time.monotonic()
        node.wait(30)  # the first node's end is the second one's
        print(f"second node gone {time.monotonic() - began:.1f} s after the first")
        assert not family_of(node)


def test_a_node_that_is_killed_ends_the_other(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    first, second = hosts
    log = tmp_path / "second.log"
    long = [{**STEPS[0], "prompts": [prompt(16_000, seed=i) for i in range(20)]}]
    with (
        follower(second, on(second, 1, first, V), log) as node,
        ThreadPoolExecutor(1) as pool,
    ):
        engine = on(first, 0, first, V)
        running = pool.submit(run, engine, long, 200, prefix=first.prefix())
        quiet = first.sent_bytes()
        while first.sent_bytes() < quiet + 4_000_000 and not running.done():
            time.sleep(0.2)  # some prefill has crossed the cable
        began = time.monotonic()
        for process in family_of(node):
            process.kill()
        with pytest.raises(AssertionError) as caught:
            running.result(60)
        assert "no end within" not in str(caught.value)
        print(f"first node ended {time.monotonic() - began:.1f} s after the second was killed")
        assert time.monotonic() - began < 30
