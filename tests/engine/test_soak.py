"""Ten thousand requests, a fifth of them aborted: none lost, none wrong, nothing left, no growth.

`make soak`. Lengths follow a public trace where one is at hand (`VPP_WORKLOADS`, a folder of files
in the form of docs/planner.md), scaled down to what a CPU serves in minutes; else a long-tailed
distribution of the same shape.
"""

import asyncio
import json
import math
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]
import pytest
from engine_runs import Engine, V, prompt
from served import Server, body, serve

pytestmark = [pytest.mark.vllm, pytest.mark.soak, pytest.mark.timeout(5400)]

REQUESTS = int(os.environ.get("VPP_SOAK_REQUESTS", "10000"))
SHARED = Path(__file__).parents[3] / "shared" / "workloads"
TRACE = Path(os.environ.get("VPP_WORKLOADS", SHARED)) / "azure2023_code.jsonl"
LONGEST = 1500
AT_ONCE = 96
ABORTED = 0.2
BURST = 50
SAMPLE = 40  # answers compared with those of an idle server


@dataclass(frozen=True)
class Wanted:
    """A request; `leaves_after` seconds the client goes away, if not None."""

    number: int
    length: int
    tokens: int
    leaves_after: float | None

    @property
    def request(self) -> dict[str, Any]:
        return body(prompt(self.length, seed=self.number % 400), self.tokens)


def lengths(count: int, rng: random.Random) -> list[tuple[int, int]]:
    """Prompt and output lengths."""
    if TRACE.exists():
        rows = [json.loads(line) for line in TRACE.read_text().splitlines()]
        longest = max(row["input_length"] for row in rows)
        pairs = [(row["input_length"], row["output_length"]) for row in rows]
        scaled = [(max(1, n * LONGEST // longest), 1 + min(out // 8, 11)) for n, out in pairs]
        return [scaled[rng.randrange(len(scaled))] for _ in range(count)]
    return [
        (min(LONGEST, max(1, round(math.exp(rng.gauss(4.5, 1.2))))), rng.randint(1, 12))
        for _ in range(count)
    ]


def wanted(count: int) -> list[Wanted]:
    rng = random.Random(11)
    found = []
    for number, (length, tokens) in enumerate(lengths(count, rng)):
        in_burst = number % 1000 < BURST  # everybody leaves at once
        leaves = in_burst or rng.random() < ABORTED
        after = (0.2 if in_burst else rng.uniform(0.0, 1.5)) if leaves else None
        found.append(Wanted(number, length, tokens, after))
    return found


async def send(client: httpx.AsyncClient, url: str, one: Wanted) -> list[int] | None:
    """Tokens, or None for a request that was given up."""
    call = client.post(f"{url}/v1/completions", json=one.request)
    if one.leaves_after is None:
        answer = await call
        assert answer.status_code == 200, answer.text
        tokens: list[int] = answer.json()["choices"][0]["token_ids"]
        return tokens
    try:
        await asyncio.wait_for(call, one.leaves_after)
    except (TimeoutError, httpx.TransportError):
        return None
    return None


async def send_all(url: str, requests: Sequence[Wanted], at_once: int) -> list[list[int] | None]:
    limits = httpx.Limits(max_connections=at_once)
    gate = asyncio.Semaphore(at_once)
    async with httpx.AsyncClient(timeout=600, limits=limits) as client:

        async def one_of(one: Wanted) -> list[int] | None:
            async with gate:
                return await send(client, url, one)

        return await asyncio.gather(*map(one_of, requests))


def resident(server: Server) -> int:
    """Bytes of the server's processes."""
    total = 0
    for process in server.family():
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


@pytest.mark.parametrize(("seats", "share"), [(64, 0.9), (1, 0.1)])
def test_nothing_is_lost_wrong_or_left(seats: int, share: float, tmp_path: Path) -> None:
    requests = wanted(round(REQUESTS * share))
    with serve(Engine("llama", 2, V), tmp_path, "--max-num-seqs", str(seats)) as server:
        quarter = len(requests) // 4
        answers = asyncio.run(send_all(server.url, requests[:quarter], AT_ONCE))
        assert not any(server.rest(120).values()), server.rest()
        before = resident(server)
        answers += asyncio.run(send_all(server.url, requests[quarter:], AT_ONCE))
        rest = server.rest(120)
        assert not any(rest.values()), rest
        assert server.metric("vllm:vpp_in_flight") == 0
        assert resident(server) < before * 1.05 + 32 * 2**20, "memory grows"
        stayed = [(r, a) for r, a in zip(requests, answers, strict=True) if r.leaves_after is None]
        for one, tokens in stayed:
            assert tokens is not None, f"request {one.number} has no answer"
            assert len(tokens) == one.tokens, f"request {one.number} is short"
        sample = random.Random(2).sample(stayed, min(SAMPLE, len(stayed)))
        again = asyncio.run(send_all(server.url, [one for one, _ in sample], 1))
        wrong = [one for (one, tokens), alone in zip(sample, again, strict=True) if tokens != alone]
        assert len(wrong) == 0, f"another answer when alone: {wrong}"
