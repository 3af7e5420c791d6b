"""A pipeline over two machines, with vLLM's own start-up: one command per node."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
from engine_runs import (
    BRIEF,
    CHUNK,
    GREEDY,
    HERE,
    Engine,
    V,
    brief,
    brief_answers,
    outputs,
    prompt,
    run,
)
from hosts import Host, two_hosts

from vllm_vpp.core.chunking import make_policy
from vllm_vpp.core.cost import QuadraticCost, StageCost
from vllm_vpp.core.layout import Layout
from vllm_vpp.sim import Links, Request, Setup, simulate
from vllm_vpp.sim.links import TRIPS

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

PORT = 29_641
STEPS = [brief()]
LONG = [{**STEPS[0], "prompts": [prompt(16_000, seed=i) for i in range(20)]}]


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    with two_hosts() as pair:
        if pair is None:
            pytest.skip("may not make network namespaces here")
        yield pair


def on(host: Host, rank: int, first: Host, vpp: dict[str, Any], **environment: str) -> Engine:
    """Our part of the engine on a host; each has one rank, on a core of its own."""
    cores = sorted(os.sched_getaffinity(0))
    environment |= host.variables() | {
        "VLLM_CPU_OMP_THREADS_BIND": str(cores[rank % len(cores)]),
        "VLLM_LOGGING_LEVEL": "INFO",
    }
    nodes = {"nnodes": 2, "node_rank": rank, "master_addr": first.address, "master_port": PORT}
    return Engine("llama", 2, vpp, options=nodes, environment=environment)


def with_options(engine: Engine, more: dict[str, Any]) -> Engine:
    return replace(engine, options=engine.options | more)


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


def wait_for_traffic(host: Host, running: "Future[Any]") -> None:
    """Until some prefill has crossed the cable."""
    quiet = host.sent_bytes()
    while host.sent_bytes() < quiet + 4_000_000 and not running.done():
        time.sleep(0.2)


def family_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(process.pid)
        return [parent, *parent.children(recursive=True)]
    return []


def session_of(leader: int) -> list[psutil.Process]:
    """What a process has started that still runs, also when it has itself ended."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            is_dead = process.status() == psutil.STATUS_ZOMBIE
            if os.getsid(process.pid) == leader and not is_dead:
                found.append(process)
    return found


@pytest.mark.parametrize(
    ("vpp", "ahead"),
    [(V, False), ({"layout": "linear"}, False), (V, True)],
    ids=["v", "linear", "v, asynchronous"],
)
def test_two_machines_answer_like_one_rank(
    vpp: dict[str, Any], ahead: bool, hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    first, second = hosts
    log = tmp_path / "second.log"
    more = {"async_scheduling": True} if ahead else {}
    with follower(second, with_options(on(second, 1, first, vpp), more), log) as node:
        engine = with_options(on(first, 0, first, vpp), more)
        answers = run(engine, STEPS, limit_s=200, prefix=first.prefix())
        for mine, expected in zip(outputs(answers["alone"]), brief_answers(), strict=True):
            assert mine.tokens == expected.tokens
            assert mine.logprobs == expected.logprobs
        hidden = 128 * 4  # bytes of a token's hidden state, as much again for the residual
        assert first.sent_bytes() > sum(BRIEF) * hidden
        began = time.monotonic()
        node.wait(60)  # the first node's end is the second one's
        print(f"second node gone {time.monotonic() - began:.1f} s after the first")
        deadline = time.monotonic() + 30
        while (left := session_of(node.pid)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not left


def test_a_cable_cut_in_mid_prefill_is_an_error_in_bounded_time(
    hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    """Nobody closes a connection; vLLM's own time limit for a step says how long is too long."""
    first, second = hosts
    log = tmp_path / "second.log"
    with (
        follower(second, on(second, 1, first, V), log),
        ThreadPoolExecutor(1) as pool,
    ):
        engine = on(first, 0, first, V, VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS="8")
        running = pool.submit(run, engine, LONG, 200, prefix=first.prefix())
        wait_for_traffic(first, running)
        began = time.monotonic()
        second.cut()
        with pytest.raises(AssertionError, match="timed out"):
            running.result(200)
        print(f"first node ended {time.monotonic() - began:.1f} s after the cable was cut")
        assert time.monotonic() - began < 60


@pytest.mark.slow
def test_transfers_are_hidden_up_to_the_rate_that_the_simulator_predicts(
    hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    """The same prompts over cables that take half a stage's time per chunk, and four times it."""
    first, second = hosts
    length, count = 8192, 3
    sampling = GREEDY | {"max_tokens": 1}
    one = {**STEPS[0], "prompts": [prompt(length, seed=i) for i in range(count)]}
    steps = [{**one, "name": name, "sampling": sampling} for name in ("warm", "timed")]

    def seconds(rate: float | None) -> tuple[float, float]:
        """Of a prompt, and bytes that a token takes on the cable, one way."""
        for host in hosts:
            if rate is not None:
                host.limit(rate)
        before = first.sent_bytes()
        engines = [replace(on(h, r, first, V), caching=False) for r, h in enumerate(hosts)]
        with follower(second, engines[1], tmp_path / "second.log"):
            answers = run(engines[0], steps, limit_s=280, prefix=first.prefix())
        sent = first.sent_bytes() - before
        return answers["timed"]["seconds"] / count, sent / (2 * count * length)

    free, token_bytes = seconds(None)
    chunks = length // CHUNK
    stage = free * 2 / chunks / 4  # two ranks are busy, a chunk has four stages
    for share in (0.5, 4.0):
        rate = CHUNK * token_bytes / (share * stage)
        links = Links(latency=share * stage, channels=1)
        expected = predicted(stage, chunks, links) / predicted(stage, chunks, Links())
        found = seconds(rate)[0] / free
        print(f"{rate * 8e-6:.1f} Mbit/s: {found:.2f} of the time, predicted {expected:.2f}")
        assert (expected < 1.15) is (share < 1)
        assert found > 0.7 * expected
        assert found < 1.3 * expected or share > 1  # messages of the engine queue behind data, too


def test_a_transfer_crosses_the_link_as_often_as_the_planner_says() -> None:
    late_s = 0.1
    with two_hosts(late_s) as pair:
        if pair is None:
            pytest.skip("may not make network namespaces and their devices here")
        ends = [
            subprocess.Popen(
                [*h.prefix(), sys.executable, str(HERE / "send_far.py"), str(r), pair[0].address],
                env=os.environ | h.variables(),
                stdout=subprocess.PIPE,
                text=True,
            )
            for r, h in enumerate(pair)
        ]
        logs = [end.communicate(timeout=300)[0] for end in ends]
    seconds = [float(line.split()[1]) for line in logs[1].splitlines() if line.startswith("took ")]
    trips = median(seconds) / late_s
    print(f"{trips:.1f} trips per transfer")
    assert TRIPS - 1 <= trips < TRIPS + 2  # a busy machine is late itself


@pytest.mark.slow
def test_machines_far_apart_answer_like_one_rank(tmp_path: Path) -> None:
    """What crosses comes 20 ms later, and so do the engine's messages; the order stays."""
    with two_hosts(0.02) as pair:
        if pair is None:
            pytest.skip("may not make network namespaces and their devices here")
        first, second = pair
        engines = [on(host, rank, first, V) for rank, host in enumerate(pair)]
        with follower(second, engines[1], tmp_path / "second.log"):
            answers = run(engines[0], STEPS, limit_s=600, prefix=first.prefix())
    for mine, expected in zip(outputs(answers["alone"]), brief_answers(), strict=True):
        assert mine.tokens == expected.tokens
        assert mine.logprobs == expected.logprobs


def predicted(stage: float, chunks: int, links: Links) -> float:
    """Seconds of a prompt in equal chunks on a V of two ranks."""
    layout = Layout(2, 2)
    setup = Setup(
        layout=layout,
        cost=StageCost.by_layers(QuadraticCost(c0=4 * stage, b=0.0, a=0.0), [1] * layout.stages),
        policy=make_policy({"policy": "fixed", "chunk": CHUNK}, law=None, ranks=2),
        links=links,
    )
    return simulate([Request(name="r", prompt=chunks * CHUNK)], setup).ttft()[0]


@pytest.mark.parametrize("vpp", [V, {"layout": "linear"}], ids=["v", "linear"])
def test_a_node_that_is_killed_ends_the_other(
    vpp: dict[str, Any], hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    """With `linear` nothing comes back from it, but a rank waits for its farewell all the same."""
    first, second = hosts
    log = tmp_path / "second.log"
    with (
        follower(second, on(second, 1, first, vpp), log) as node,
        ThreadPoolExecutor(1) as pool,
    ):
        engine = on(first, 0, first, vpp)
        running = pool.submit(run, engine, LONG, 200, prefix=first.prefix())
        wait_for_traffic(first, running)
        began = time.monotonic()
        for process in family_of(node):
            process.kill()
        with pytest.raises(AssertionError) as caught:
            running.result(200)
        assert "no end within" not in str(caught.value)
        print(f"first node ended {time.monotonic() - began:.1f} s after the second was killed")
        assert time.monotonic() - began < 30
