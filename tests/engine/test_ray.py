"""vLLM's Ray executor with stages: workers placed by Ray answer like one rank.

Up to the last bits of log-probabilities: how many threads a worker has is Ray's affair.
"""

from typing import Any

import pytest
from engine_runs import (
    GREEDY,
    LENGTHS,
    TOGETHER_BOUND,
    Engine,
    V,
    outputs,
    prompt,
    run,
    stock,
)
from test_same_answers import largest_difference

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
    expected = [alone[length] for length in PROMPTS]
    assert largest_difference(outputs(answers["alone"]), expected) <= TOGETHER_BOUND["llama"]
