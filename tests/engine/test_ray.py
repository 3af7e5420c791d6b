"""vLLM's Ray executor with stages: workers placed by Ray answer like one rank."""

from typing import Any

import pytest
from engine_runs import GREEDY, LENGTHS, Engine, V, outputs, prompt, run, stock

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
pytest.importorskip("ray")

PROMPTS = (1, 513, 2000)
STEPS: list[dict[str, Any]] = [
    {
        "do": "generate",
        "name": "alone",
        "prompts": [prompt(n) for n in PROMPTS],
        "sampling": GREEDY,
    },
    {"do": "config", "name": "config"},
]


@pytest.mark.parametrize(
    "vpp", [V, pytest.param({"layout": "linear"}, marks=pytest.mark.slow)], ids=["v", "linear"]
)
def test_workers_placed_by_ray_answer_like_one_rank(vpp: dict[str, Any]) -> None:
    engine = Engine("llama", 2, vpp, options={"distributed_executor_backend": "ray"})
    answers = run(engine, STEPS, script="run_engine_on_ray.py")
    assert "VPPRayExecutor" in answers["config"]["executor"]
    alone = dict(zip(LENGTHS, outputs(stock("llama")["alone"]), strict=True))
    for mine, length in zip(outputs(answers["alone"]), PROMPTS, strict=True):
        assert mine.tokens == alone[length].tokens
        assert mine.logprobs == alone[length].logprobs
