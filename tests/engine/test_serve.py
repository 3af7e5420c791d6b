"""`vllm serve` with the switch: correct answers, aborts, and an end when a worker dies."""

import contextlib
import random
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from engine_runs import GREEDY, LENGTHS, MIXED, Engine, Output, V, crowd, outputs, prompt, stock
from served import (
    Server,
    body,
    complete,
    complete_all,
    disconnect,
    left_behind,
    serve,
    wait_for_end,
)

END = 257  # of the generated model

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(Engine("llama", 2, V), tmp_path_factory.mktemp("serve")) as running:
        yield running


def expected(name: str) -> list[Output]:
    return outputs(stock("llama")[name])


def tokens_of(found: list[Output]) -> list[list[int]]:
    return [one.tokens for one in found]


def mixed(**more: object) -> list[dict[str, object]]:
    return [body(prompt(n, seed=1), 20, **more) for n in MIXED]


@pytest.mark.parametrize("stream", [False, True])
def test_concurrent_requests_answer_like_stock_vllm(server: Server, stream: bool) -> None:
    assert complete_all(server, mixed(stream=stream)) == tokens_of(expected("together"))


def test_requests_that_arrive_during_decode_answer_like_stock_vllm(server: Server) -> None:
    decoding = [body(tokens, 140, stream=True) for tokens in crowd()["prompts"]]
    made = server.metric("vllm:generation_tokens_total")
    with ThreadPoolExecutor(len(decoding)) as pool:
        running = [pool.submit(complete, server, request) for request in decoding]
        server.wait_for(lambda: server.metric("vllm:generation_tokens_total") > made)
        late = complete_all(server, mixed(stream=True))
        assert late == tokens_of(expected("together"))
        assert [one.result(300) for one in running] == tokens_of(expected("crowd"))


def test_text_and_chat_streamed_or_not_agree(server: Server) -> None:
    chat = {
        "model": "m",
        "messages": [{"role": "user", "content": "What is a V? " * 60}],
        "max_tokens": 12,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=chat, timeout=120).json()
    prompt_ids = answer["prompt_token_ids"]
    tokens = answer["choices"][0]["token_ids"]
    assert len(prompt_ids) > 512
    assert len(tokens) == 12
    assert complete(server, body(prompt_ids, 12)) == tokens
    assert complete(server, body(prompt_ids, 12, stream=True)) == tokens


def test_structured_output_keeps_to_its_grammar(server: Server) -> None:
    """Each micro-batch samples under the grammar's state of its own step, not of a later one."""
    patterns = [f"(abc|b){{{6 + i}}}[0-9]{{{1 + i}}}" for i in range(10)]
    requests = [
        body(prompt(200 + 150 * i, 5), 64, structured_outputs={"regex": p}, ignore_eos=False)
        for i, p in enumerate(patterns)
    ]
    for _ in range(3):
        for tokens, pattern in zip(complete_all(server, requests), patterns, strict=True):
            text = bytes(token for token in tokens if token != END).decode()
            assert re.fullmatch(pattern, text), (pattern, text)


def test_live_numbers_are_on_the_metrics_page(server: Server) -> None:
    names = [f"vllm:vpp_{name}_total" for name in ("chunks", "chunk_tokens", "active_seconds")]
    ranked = [f"vllm:vpp_rank_{name}_total" for name in ("busy_seconds", "actions")]
    complete(server, body(prompt(600, seed=40), 4))  # a rank is shown once it has run something
    before = {name: server.metric(name) for name in names + ranked}
    complete(server, body(prompt(2000, seed=41), 4))
    after = {name: server.metric(name) for name in names + ranked}
    assert all(after[name] > before[name] for name in after), (before, after)
    assert after["vllm:vpp_chunk_tokens_total"] - before["vllm:vpp_chunk_tokens_total"] == 2000
    busy, active = (after[n] - before[n] for n in (ranked[0], names[2]))
    assert 0 < busy <= 2 * active * 1.01, "two ranks"
    assert 0 <= server.metric("vllm:vpp_rank_bubble_ratio") <= 2
    waits = server.metric("vllm:vpp_rank_input_wait_seconds_total")
    assert 0 <= server.metric("vllm:vpp_rank_exposed_communication_seconds_total") <= waits
    assert server.rest()["vllm:num_requests_running"] == 0
    server.wait_for(lambda: server.metric("vllm:vpp_in_flight") == 0)


def test_fifty_requests_aborted_in_mid_prefill_leave_nothing_behind(server: Server) -> None:
    storm = [body(prompt(12_000, seed=100 + i), 16) for i in range(50)]
    before = server.metric("vllm:prompt_tokens_total")
    with ThreadPoolExecutor(60) as pool:
        leaving = [pool.submit(disconnect, server, request, 2.0) for request in storm]
        time.sleep(0.3)
        staying = [pool.submit(complete, server, request) for request in mixed()]
        for one in leaving:
            one.result(120)
        assert [one.result(240) for one in staying] == tokens_of(expected("together"))
    assert not any(server.rest().values()), server.rest()
    computed = server.metric("vllm:prompt_tokens_total") - before  # counted as a prefill ends
    assert computed < 25 * 12_000, "most of the storm was to leave in mid-prefill"
    assert complete(server, body(prompt(LENGTHS[-2]), 16)) == expected("alone")[-2].tokens


def test_requests_aborted_between_stages_leave_nothing_behind(server: Server) -> None:
    rng = random.Random(0)
    for _ in range(12):  # alone: each time the engine is left with micro-batches nobody wants
        disconnect(server, body(prompt(rng.randint(1, 6000), 200), 50), rng.uniform(0.01, 0.6))
    assert not any(server.rest().values()), server.rest()
    time.sleep(2)
    assert complete(server, body(prompt(LENGTHS[-2]), 16)) == expected("alone")[-2].tokens


def test_asynchronous_scheduling_serves_grammars_and_aborts(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("ahead")
    with serve(Engine("llama", 2, V), folder, "--async-scheduling") as server:
        test_concurrent_requests_answer_like_stock_vllm(server, stream=True)
        test_requests_that_arrive_during_decode_answer_like_stock_vllm(server)
        test_structured_output_keeps_to_its_grammar(server)
        test_requests_aborted_between_stages_leave_nothing_behind(server)


def test_a_dead_worker_ends_the_server(server: Server) -> None:
    family, segments = server.family(), server.shared_memory()
    victim = server.workers()[1]
    failure: list[str] = []

    def ask() -> None:
        try:
            answer = httpx.post(
                f"{server.url}/v1/completions", json=body(prompt(30_000, 300), 2000), timeout=300
            )
            failure.append(f"{answer.status_code} {answer.text}")
        except httpx.TransportError as error:
            failure.append(repr(error))

    asking = threading.Thread(target=ask)
    asking.start()
    server.wait_for(lambda: server.metric("vllm:num_requests_running") == 1)
    victim.kill()
    seconds = wait_for_end(server, family, 30)
    print(f"kill to end: {seconds:.1f} s; the client got {failure}")
    asking.join(60)
    assert failure
    assert not failure[0].startswith("200")
    assert "died unexpectedly" in server.log.read_text()
    assert not left_behind(segments, 5)


def test_one_slot_serves_one_after_the_other_and_sigterm_ends_it(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    engine = Engine("llama", 2, V)
    with serve(engine, tmp_path_factory.mktemp("one"), "--max-num-seqs", "1") as server:
        long = prompt(LENGTHS[-1])
        with ThreadPoolExecutor(8) as pool:
            first = pool.submit(complete, server, body(long, GREEDY["max_tokens"]))
            others = complete_all(server, mixed()[:6])
            assert first.result(240) == expected("alone")[-1].tokens
        assert others == tokens_of(expected("together"))[:6]
        disconnect(server, body(prompt(12_000, 400), 8), 0.5)
        assert complete(server, body(prompt(2000), 16)) == expected("alone")[-2].tokens
        assert not any(server.rest().values())
        family, segments = server.family(), server.shared_memory()
        with contextlib.suppress(ProcessLookupError):
            server.process.send_signal(signal.SIGTERM)
        seconds = wait_for_end(server, family, 30)
        print(f"SIGTERM to end: {seconds:.1f} s, exit {server.process.returncode}")
        assert not left_behind(segments, 5)


@pytest.mark.slow
def test_nothing_listens_but_what_stock_vllm_has(tmp_path: Path) -> None:
    with serve(Engine("llama", 2, V), tmp_path) as ours:
        complete(ours, body(prompt(600), 4))
        found = ours.listening()
    with serve(Engine("llama", 2, environment={"VLLM_PLUGINS": ""}), tmp_path) as theirs:
        usual = theirs.listening()
    print(f"listening: {dict(found)}, without this package: {dict(usual)}")
    assert found["server"] == 1
    assert found <= usual
