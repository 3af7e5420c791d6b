"""Figures rather than answers: how fast the V decodes beside a linear pipeline.

Not a timed test: it prints what it measured and fails only where something is out of proportion.
"""

import statistics
from typing import Any

import pytest
from engine_runs import Engine, prompt, run

from vllm_vpp.bench.models import checkpoint, small

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1800)]

BATCH = 8
TOKENS = 128


def decode_rates(vpp: dict[str, Any]) -> list[float]:
    """Tokens per second of decode at batch 8, several times; prefill is measured and taken off."""
    steps = []
    for round_ in range(5):
        prompts = [prompt(100, seed=50 + 8 * round_ + i) for i in range(BATCH)]
        common = {"do": "generate", "together": True, "prompts": prompts}
        for name, tokens in (("first", 1), ("all", 1 + TOKENS)):
            sampling = {"temperature": 0, "max_tokens": tokens}
            steps.append({**common, "name": f"{name} {round_}", "sampling": sampling})
    model = str(checkpoint(small("llama", layers=16)))
    engine = Engine("llama", 2, vpp, caching=False, options={"model": model})
    found = run(engine, steps)
    return [
        BATCH * TOKENS / (found[f"all {r}"]["seconds"] - found[f"first {r}"]["seconds"])
        for r in range(1, 5)
    ]


def test_decode_speed_beside_a_linear_pipeline() -> None:
    rates: dict[str, list[float]] = {"linear": [], "v": []}
    for _ in range(2):  # in turn, since the machine drifts
        for name in rates:
            rates[name] += decode_rates({"layout": name})
    for name, found in rates.items():
        print(f"{name}: {statistics.median(found):.0f} tokens/s {[round(r) for r in found]}")
    ratio = statistics.median(rates["v"]) / statistics.median(rates["linear"])
    print(f"V / linear: {ratio:.3f}")
    assert ratio > 0.7
