"""vLLM's Ray executor with stages: workers placed by Ray answer like one rank.

Up to the last bits of log-probabilities: how many threads a worker has is Ray's affair.
"""

from typing import Any

import pytest
from engine_runs import TOGETHER_BOUND, Engine, V, brief, brief_answers, outputs, run
from test_same_answers import largest_difference

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
pytest.importorskip("ray")

STEPS = [brief(), {"do": "config", "name": "config"}]


@pytest.mark.parametrize(
    "vpp", [V, pytest.param({"layout": "linear"}, marks=pytest.mark.slow)], ids=["v", "linear"]
)
def test_workers_placed_by_ray_answer_like_one_rank(vpp: dict[str, Any]) -> None:
    engine = Engine("llama", 2, vpp, options={"distributed_executor_backend": "ray"})
    answers = run(engine, STEPS, script="run_engine_on_ray.py")
    assert "VPPRayExecutor" in answers["config"]["executor"]
    assert largest_difference(outputs(answers["alone"]), brief_answers()) <= TOGETHER_BOUND["llama"]
