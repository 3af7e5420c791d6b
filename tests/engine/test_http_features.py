"""What clients may ask of `vllm serve`: stages answer as stock vLLM on one rank, in every layout.

Stock vLLM answers once; then one server per layout answers the same requests, one at a time. The V
cuts prompts by a plan, so that a prefix-cache hit ends inside a planned chunk.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import http_features
import pytest
from engine_runs import LAYERS, MAX_MODEL_LEN, TOGETHER_BOUND, Engine
from http_features import Client, only, with_adapter
from made_weights import adapter
from served import serve

from vllm_vpp.bench.models import tiny

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

BOUND = TOGETHER_BOUND["llama"]
LAYOUTS: dict[str, dict[str, Any]] = {
    "v": {
        "layout": "v",
        "chunking": {"policy": "ramp", "peak": 512, "down": 4},
        "cost": {"c0": 0.02, "b": 1e-4, "a": 5e-8},
    },
    "linear": {"layout": "linear"},
    "wave": {"layout": "wave", "sweeps": 3},
}
FEATURES = {
    "completions, streamed or not": http_features.completion,
    "chat, streamed or not": http_features.chat,
    "several samples": http_features.samples,
    "seeds": http_features.seeds,
    "stop strings": http_features.stop_strings,
    "log-probabilities": http_features.logprobs,
    "log-probabilities of the prompt": http_features.prompt_logprobs,
    "JSON schema": http_features.json_schema,
    "regular expressions": http_features.regex,
    "tool calls": http_features.tool_calls,
    "a prefix-cache hit that ends inside a chunk": http_features.cached_prefix,
    "LoRA adapters": http_features.adapters,
    "LoRA adapters loaded while serving": http_features.adapters_by_request,
    "/health, /metrics and /v1/models": http_features.pages,
}
OPTIONS = [
    *("--enable-lora", "--max-loras", "2", "--max-lora-rank", "8"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "pythonic"),
    *("--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}'),
    "--enable-prompt-tokens-details",
]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    spec = tiny("llama", layers=LAYERS, max_positions=MAX_MODEL_LEN)
    for seed, name in enumerate(("one", "two", "three")):
        adapter(folder / name, spec, seed)
    return folder


def started(engine: Engine, adapters: Path, folder: Path) -> Any:
    known = [f"{name}={adapters / name}" for name in ("one", "two")]
    return serve(engine, folder, *OPTIONS, "--lora-modules", *known)


def environment(**more: str) -> dict[str, str]:
    return {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", **more}


@pytest.fixture(scope="module")
def expected(adapters: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    engine = Engine("llama", environment=environment(VLLM_PLUGINS=""))
    with started(engine, adapters, tmp_path_factory.mktemp("stock")) as server:
        client = Client(server.url, adapters)
        return {name: feature(client) for name, feature in FEATURES.items()}


@pytest.fixture(scope="module", params=LAYOUTS)
def client(
    request: pytest.FixtureRequest,
    expected: dict[str, Any],
    adapters: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Client]:
    del expected  # the stock server has ended before another starts
    engine = Engine("llama", 2, LAYOUTS[request.param], environment=environment())
    with started(engine, adapters, tmp_path_factory.mktemp(request.param)) as server:
        yield Client(server.url, adapters)


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_answers_like_stock_vllm(
    name: str, client: Client, expected: dict[str, Any]
) -> None:
    found = list(differences(FEATURES[name](client), expected[name]))
    assert found == []


def differences(mine: Any, other: Any, where: str = "") -> Iterator[str]:
    """Where two answers differ; log-probabilities may by what another order of sums makes."""
    if isinstance(mine, dict) and isinstance(other, dict):
        for key in mine.keys() | other.keys():
            yield from differences(mine.get(key), other.get(key), f"{where}.{key}")
    elif isinstance(mine, (list, tuple)) and isinstance(other, (list, tuple)):
        if len(mine) != len(other):
            yield f"{where}: {len(mine)} parts, {len(other)} expected"
        for index, (a, b) in enumerate(zip(mine, other, strict=False)):
            yield from differences(a, b, f"{where}[{index}]")
    elif isinstance(mine, float) and isinstance(other, float):
        if not abs(mine - other) <= BOUND:
            yield f"{where}: {mine!r}, {other!r} expected"
    elif mine != other:
        yield f"{where}: {mine!r}, {other!r} expected"


def test_with_and_without_adapters_in_one_step_is_answered_as_alone(
    client: Client, expected: dict[str, Any]
) -> None:
    models = ["m", "one", "two"]
    alone = dict(zip(models, expected["LoRA adapters"], strict=False))
    asked = [models[i % 3] for i in range(9)]
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda model: with_adapter(client, model), asked))
    for model, answer in zip(asked, answers, strict=True):
        assert only(answer)["token_ids"] == only(alone[model])["token_ids"], model
