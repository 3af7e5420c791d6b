"""vLLM features under each layout: answers as stock vLLM's with the same settings on one rank."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from engine_runs import (
    GREEDY,
    LAYERS,
    MAX_MODEL_LEN,
    TOGETHER_BOUND,
    Engine,
    V,
    outputs,
    prompt,
    run,
)
from made_weights import awq_checkpoint, int8_checkpoint
from test_same_answers import largest_difference

from vllm_vpp.bench.architectures import ModelSpec
from vllm_vpp.bench.models import checkpoint, tiny

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

BOUND = TOGETHER_BOUND["llama"]
LENGTHS = (1, 300, 1300)
LAYOUTS: dict[str, dict[str, Any]] = {
    "v": V,
    "linear": {"layout": "linear"},
    "wave": {"layout": "wave", "sweeps": 3},
}


def alone(**more: Any) -> dict[str, Any]:
    prompts = [prompt(n, seed=21) for n in LENGTHS]
    return {"do": "generate", "name": "alone", "prompts": prompts, "sampling": GREEDY, **more}


def together(**more: Any) -> dict[str, Any]:
    prompts = [prompt(n, seed=22 + n) for n in (5, 700, 1500, 90)]
    step = {"do": "generate", "name": "together", "together": True, "prompts": prompts}
    return step | {"sampling": GREEDY, **more}


@dataclass(frozen=True)
class Feature:
    """Engine settings shared by both sides, and what both are asked.

    `tensor`: processes per rank. `vpp`: settings beside the layout. `quantised` writes the
    checkpoint into a folder. `kernel`: an operator that vLLM's CPU build lacks on some processors.
    """

    architecture: str = "llama"
    model: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    steps: tuple[dict[str, Any], ...] = (alone(), together())
    tensor: int = 1
    vpp: dict[str, Any] = field(default_factory=dict)
    quantised: Callable[[Path, ModelSpec], str] | None = None
    kernel: str | None = None

    @property
    def script(self) -> str:
        """What starts the engines."""
        return "run_four_bit_engine.py" if self.kernel and lacks(self.kernel) else "run_engine.py"

    def engine(self, ranks: int, vpp: dict[str, Any] | None, folder: Path) -> Engine:
        """Keeps what it learns in `folder`."""
        sizes = {"layers": LAYERS, "max_positions": MAX_MODEL_LEN} | self.model
        options = {"model": self.weights(tiny(self.architecture, **sizes), folder)} | self.options
        processes = ranks * self.tensor
        cores = "|".join(str(i % 2) for i in range(processes))
        environment = {"VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_CACHE_ROOT": str(folder)}
        if self.tensor > 1:
            options["tensor_parallel_size"] = self.tensor
        if vpp is None:
            environment["VLLM_PLUGINS"] = ""
        return Engine(self.architecture, ranks, vpp, options=options, environment=environment)

    def weights(self, spec: ModelSpec, folder: Path) -> str:
        if self.quantised is None:
            return str(checkpoint(spec))
        made = folder / "model"
        return str(made) if made.exists() else self.quantised(made, spec)


FEATURES = {
    "sliding windows beside full attention": Feature("gemma3"),
    "sliding windows, planned as they bend": Feature(
        "gemma3", vpp={"chunking": {"policy": "hybrid", "peak": 256}, "learn": True}
    ),
    "tied embeddings": Feature(model={"tied_embeddings": True}),
    "tensor parallel": Feature(tensor=2),
    "priorities, and several samples": Feature(
        options={"scheduling_policy": "priority"},
        steps=(
            together(priority=[3, 2, 1, 0]),
            {
                "do": "several",
                "name": "several",
                "prompts": [prompt(200, seed=31)],
                "sampling": {"n": 3, "temperature": 0.9, "seed": 5, "max_tokens": 12},
            },
        ),
    ),
    "int8 weights (compressed-tensors, W8A8)": Feature(quantised=int8_checkpoint, steps=(alone(),)),
    "AWQ weights (4 bits)": Feature(
        model={"dtype": "float16"},
        options={"dtype": "float16"},
        quantised=awq_checkpoint,
        kernel="cpu_gemm_wna16",
        steps=(alone(),),
    ),
    "pooling": Feature(
        options={"runner": "pooling", "convert": "embed", "skip_tokenizer_init": False},
        steps=(
            {
                "do": "embed",
                "name": "embed",
                "prompts": [prompt(n, seed=41) for n in (3, 400, 1300)],
            },
        ),
    ),
}

SLOW = {"AWQ weights (4 bits)"}


def lacks(kernel: str) -> bool:
    """Whether vLLM has no such operator on this processor."""
    import torch
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    return not hasattr(torch.ops._C, kernel)


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Feature], dict[str, Any]]:
    """What stock vLLM answers; each feature is asked once."""
    known: dict[str, dict[str, Any]] = {}

    def ask(feature: Feature) -> dict[str, Any]:
        if repr(feature) not in known:
            engine = feature.engine(1, None, tmp_path_factory.mktemp("stock"))
            known[repr(feature)] = run(engine, feature.steps, script=feature.script)
        return known[repr(feature)]

    return ask


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        pytest.param(name, layout, marks=[pytest.mark.slow] * (name in SLOW or layout != "v"))
        for name in FEATURES
        for layout in LAYOUTS
    ],
)
def test_a_feature_answers_like_stock_vllm(
    name: str, layout: str, stock: Callable[[Feature], dict[str, Any]], tmp_path: Path
) -> None:
    feature = FEATURES[name]
    reference = stock(feature)
    engine = feature.engine(2, LAYOUTS[layout] | feature.vpp, tmp_path)
    answers = run(engine, feature.steps, script=feature.script)
    for step in feature.steps:
        mine, theirs = answers[step["name"]], reference[step["name"]]
        if step["do"] == "embed":
            assert len({tuple(vector) for vector in mine}) == len(mine), "it ignores the prompt"
            for one, other in zip(mine, theirs, strict=True):
                assert one == pytest.approx(other, abs=1e-5)
            continue
        if step["do"] == "several":
            assert mine == theirs
            assert len({tuple(tokens) for tokens in mine[0]}) > 1, "all samples are the same"
            continue
        assert largest_difference(outputs(mine), outputs(theirs)) <= BOUND


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_compiled_models_answer_like_one_rank_in_tokens(
    layout: str, stock: Callable[[Feature], dict[str, Any]], tmp_path: Path
) -> None:
    """Fusion is cut at other places, so log-probabilities of one precision differ a little."""
    feature = Feature(options={"enforce_eager": False}, steps=(alone(),))
    answers = run(feature.engine(2, LAYOUTS[layout], tmp_path), feature.steps)
    mine, theirs = outputs(answers["alone"]), outputs(stock(feature)["alone"])
    assert [one.tokens for one in mine] == [one.tokens for one in theirs]
