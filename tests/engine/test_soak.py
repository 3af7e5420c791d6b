"""Ten thousand requests, a fifth of them aborted: none lost, none wrong, nothing left, no growth.

`make soak`; `SOAK_REQUESTS` changes their number. Lengths follow a public trace where one is at
hand (`VPP_WORKLOADS`, a folder of files in the form of docs/planner.md), scaled down to what a CPU
serves in minutes; else a long-tailed distribution of the same shape. Requests come in rounds; in
each, fifty that came together also leave together.
"""

import asyncio
import json
import math
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]
import pytest
from engine_runs import Engine, V, prompt
from served import Server, body, complete, serve

pytestmark = [pytest.mark.vllm, pytest.mark.soak, pytest.mark.timeout(3600)]

REQUESTS = int(os.environ.get("SOAK_REQUESTS", "10000"))
SHARED = Path(__file__).parents[3] / "shared" / "workloads"
TRACE = Path(os.environ.get("VPP_WORKLOADS", SHARED)) / "azure2023_code.jsonl"
LONGEST = 700  # more than one chunk
MOST_TOKENS = 12
PROMPTS = 400  # different ones; the others hit the prefix cache
AT_ONCE = 96
BLOCKS = 400  # so few that all of them have been written to, and count as memory, after some rounds
KERNELS = 64  # matrix products that oneDNN keeps compiled, for the same reason; 1024 of its own
ABORTED = 0.2  # of all, bursts included
BURST = 50
ROUND = 1000
SAMPLE = 100  # answers compared with those of stock vLLM
SETTLED = 3  # rounds until memory may no longer grow
GROWTH = 16 * 2**20  # bytes, of all processes, in all rounds after that


@dataclass(frozen=True)
class Wanted:
    """A request; the client leaves `leaves_after` seconds after it came, if not None."""

    length: int
    seed: int
    tokens: int
    leaves_after: float | None = None

    @property
    def request(self) -> dict[str, Any]:
        return body(prompt(self.length, seed=self.seed), self.tokens)


def lengths(rng: random.Random) -> Iterator[tuple[int, int]]:
    """Prompt and output lengths, without end."""
    if TRACE.exists():
        rows = [json.loads(line) for line in TRACE.read_text().splitlines()]
        longest = max(row["input_length"] for row in rows)
        pairs = [(row["input_length"], row["output_length"]) for row in rows]
        while True:
            length, made = rng.choice(pairs)
            yield max(1, length * LONGEST // longest), min(1 + made // 8, MOST_TOKENS)
    while True:
        length = round(math.exp(rng.gauss(4.5, 1.2)))
        yield min(LONGEST, max(1, length)), rng.randint(1, MOST_TOKENS)


def rounds(count: int) -> Iterator[tuple[list[Wanted], list[Wanted]]]:
    """Requests that come one by one, and those of a burst, per round."""
    rng = random.Random(11)
    sizes = lengths(rng)
    for start in range(0, count, ROUND):
        size = min(ROUND, count - start)
        in_burst = min(BURST, size // 4)
        aborts = max(0.0, (ABORTED * size - in_burst) / (size - in_burst))
        together = rng.uniform(0.05, 0.5)
        made = []
        for number in range(size):
            length, tokens = next(sizes)
            leaves = rng.uniform(0.0, 1.0) if rng.random() < aborts else None
            after = together if number < in_burst else leaves
            made.append(Wanted(length, rng.randrange(PROMPTS), tokens, after))
        yield made[in_burst:], made[:in_burst]


async def send(client: httpx.AsyncClient, url: str, one: Wanted) -> list[int] | None:
    """Tokens, or None for a request that was given up."""
    call = client.post(f"{url}/v1/completions", json=one.request)
    try:
        answer = await asyncio.wait_for(call, one.leaves_after)
    except (TimeoutError, httpx.TransportError):
        assert one.leaves_after is not None, "no answer to a client that waits"
        return None
    assert answer.status_code == 200, answer.text
    tokens: list[int] = answer.json()["choices"][0]["token_ids"]
    assert len(tokens) == one.tokens, f"{one} is answered in {len(tokens)} tokens"
    return tokens


async def play(
    url: str, singles: Sequence[Wanted], burst: Sequence[Wanted]
) -> list[list[int] | None]:
    """Answers to the single requests of a round; the burst comes when half of them have."""
    gate = asyncio.Semaphore(AT_ONCE)
    # a connection each: the server closes idle ones, perhaps when the next request is on its way
    limits = httpx.Limits(max_connections=AT_ONCE + BURST, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=600, limits=limits) as client:

        async def one_of(number: int) -> list[int] | None:
            async with gate:
                if number == len(singles) // 2:
                    await asyncio.gather(*(send(client, url, one) for one in burst))
                return await send(client, url, singles[number])

        return await asyncio.gather(*map(one_of, range(len(singles))))


def resident(server: Server) -> int:
    """Bytes that the server's processes do not share."""
    total = 0
    for process in server.family():
        try:
            total += process.memory_full_info().uss
        except psutil.NoSuchProcess:
            continue
    return total


@pytest.mark.parametrize(("seats", "share"), [(64, 0.9), (1, 0.1)])
def test_nothing_is_lost_wrong_or_left(seats: int, share: float, tmp_path: Path) -> None:
    answered: list[tuple[Wanted, list[int]]] = []
    memory = []
    options = ["--max-num-seqs", str(seats), "--num-gpu-blocks-override", str(BLOCKS)]
    few = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": str(KERNELS)}
    with serve(Engine("llama", 2, V, environment=few), tmp_path, *options) as server:
        for singles, burst in rounds(round(REQUESTS * share)):
            began = time.monotonic()
            answers = asyncio.run(play(server.url, singles, burst))
            rest = server.rest(120)
            assert not any(rest.values()), rest
            assert server.metric("vllm:vpp_in_flight") == 0
            memory.append(resident(server))
            pairs = zip(singles, answers, strict=True)
            answered += [(one, tokens) for one, tokens in pairs if tokens is not None]
            lasted = time.monotonic() - began
            print(f"{len(singles)} + {len(burst)} in {lasted:.0f} s, {memory[-1] / 2**20:.0f} MiB")
        errors = [line for line in server.log.read_text().splitlines() if "ERROR" in line]
        assert errors == []
    grown = [later - memory[SETTLED - 1] for later in memory[SETTLED:]]
    assert max(grown, default=0) < GROWTH, f"memory grows: {memory}"
    rng = random.Random(2)
    sample = rng.sample(answered, min(len(answered), round(SAMPLE * share)))
    with serve(Engine("llama", environment={"VLLM_PLUGINS": ""}), tmp_path) as server:
        for one, tokens in sample:
            assert complete(server, one.request) == tokens, f"{one} is answered wrongly"
