"""A V prefills, another engine decodes from what vLLM's KV connector stored, and the other way.

A rank of a V owns layers that are not contiguous; every layer must be stored and found. The control
is a layer of the return sweep that is spoiled in the store: the answer must change.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from engine_runs import (
    GREEDY,
    LAYERS,
    LENGTHS,
    TOGETHER_BOUND,
    Engine,
    Output,
    V,
    outputs,
    prompt,
    run,
    stock,
)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

BLOCK = 128  # tokens of a KV block on the CPU backend
STORED = (512, 2000)  # prompts of one chunk and of four
SPOILED = prompt(700, seed=20)
STEPS: list[dict[str, Any]] = [
    {
        "do": "generate",
        "name": "answers",
        "prompts": [*(prompt(n) for n in STORED), SPOILED],
        "sampling": GREEDY,
    },
    {"do": "drain", "name": "left"},
]


def connected(engine: Engine, folder: Path, *, chunked: bool) -> Engine:
    transfer: dict[str, Any] = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(folder)},
    }
    if chunked:
        transfer |= {
            "kv_connector": "ChunkedConnector",
            "kv_connector_module_path": "engine_connector",
        }
    options = {**engine.options, "kv_transfer_config": transfer}
    return Engine(engine.architecture, engine.ranks, engine.vpp, options=options)


class Store(NamedTuple):
    """What a producer wrote, and its own answers."""

    folder: Path
    answers: list[Output]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("kv")
    engine = connected(Engine("llama", 2, V), folder, chunked=True)
    answers = run(engine, STEPS)
    assert answers["left"] == {"requests": 0, "blocks": 0}
    yield Store(folder, outputs(answers["answers"]))
    shutil.rmtree(folder)


def reference() -> list[Output]:
    alone = dict(zip(LENGTHS, outputs(stock("llama")["alone"]), strict=True))
    return [alone[n] for n in STORED]


def difference(mine: Output, other: Output) -> float:
    assert mine.tokens == other.tokens
    return max(abs(a - b) for a, b in zip(mine.logprobs, other.logprobs, strict=True))


def spoil(folder: Path, prompts: int, layer: int) -> None:
    """Overwrite one layer of the prompt with the second-most tokens, by that of the longest."""
    from safetensors.torch import load_file, save_file

    files = sorted(folder.glob(f"*/model.layers.{layer}.*"), key=lambda f: f.stat().st_size)
    assert len(files) == prompts
    tensors = load_file(files[1])
    save_file({name: tensor.flip(0).contiguous() for name, tensor in tensors.items()}, files[1])


def test_a_v_with_a_connector_answers_like_one_rank_and_stores_every_layer(store: Store) -> None:
    for mine, other in zip(store.answers, reference(), strict=False):
        assert difference(mine, other) == 0
    folders = list(store.folder.iterdir())
    assert len(folders) == len(STORED) + 1
    for folder in folders:
        layers = {int(file.name.split(".")[2]) for file in folder.iterdir()}
        assert layers == set(range(LAYERS))


@pytest.mark.parametrize(
    "consumer",
    [Engine("llama", 1), Engine("llama", 2, V)],
    ids=["one rank", "v on 2"],
)
def test_another_engine_decodes_what_a_v_prefilled(
    consumer: Engine, store: Store, tmp_path: Path
) -> None:
    folder = tmp_path / "kv"
    shutil.copytree(store.folder, folder)
    spoil(folder, len(STORED) + 1, layer=LAYERS - 1)
    answers = run(connected(consumer, folder, chunked=True), STEPS)
    *found, spoiled = outputs(answers["answers"])
    for mine, other, length in zip(found, reference(), STORED, strict=True):
        assert mine.cached == (length - 2) // BLOCK * BLOCK, "nothing was loaded"
        assert difference(mine, other) <= TOGETHER_BOUND["llama"]
    assert spoiled.cached == (len(SPOILED) - 2) // BLOCK * BLOCK
    gap = abs(spoiled.logprobs[0] - store.answers[-1].logprobs[0])
    assert gap > 100 * TOGETHER_BOUND["llama"], "a spoiled layer goes unnoticed"
    assert answers["left"] == {"requests": 0, "blocks": 0}


def test_the_example_connector_passes_a_prompt_of_one_chunk(tmp_path: Path) -> None:
    steps = [{"do": "generate", "name": "one", "prompts": [prompt(512)], "sampling": GREEDY}]
    folder = tmp_path / "kv"
    produced = run(connected(Engine("llama", 2, V), folder, chunked=False), steps)
    consumed = run(connected(Engine("llama", 1), folder, chunked=False), steps)
    (one,), (other,) = outputs(produced["one"]), outputs(consumed["one"])
    assert difference(one, reference()[0]) == 0
    assert (one.cached, other.cached) == (0, 384)
    assert difference(other, one) <= TOGETHER_BOUND["llama"]
