"""Stock vLLM runs the generated checkpoints, and what it answers depends on the whole prompt."""

import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_vpp.bench.models import checkpoint, tiny

SCRIPT = Path(__file__).with_name("next_token.py")
ENGINE = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_PLUGINS": "",  # no plugin at all, not even ours
}


@pytest.mark.vllm
@pytest.mark.parametrize(
    "architecture",
    [
        "llama",
        pytest.param("qwen3-moe", marks=pytest.mark.slow),
        pytest.param("deepseek-v3", marks=pytest.mark.slow),
        pytest.param("gemma3", marks=pytest.mark.slow),
    ],
)
def test_next_token_depends_on_an_early_token(architecture: str) -> None:
    spec = tiny(architecture, layers=11)
    rng = random.Random(0)
    prompt = [rng.randrange(spec.vocabulary) for _ in range(600)]
    changed = [*prompt[:5], (prompt[5] + 1) % spec.vocabulary, *prompt[6:]]
    request = {"model": str(checkpoint(spec)), "dtype": spec.dtype, "prompts": [prompt, changed]}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), json.dumps(request)],
        env=os.environ | ENGINE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    one, other = json.loads(done.stdout.splitlines()[-1])
    assert len(one) == len(other) == spec.vocabulary
    assert all(map(math.isfinite, one + other))
    entropy = -sum(math.exp(logprob) * logprob for logprob in one)
    assert 1.0 < entropy < math.log(spec.vocabulary) - 1.0
    assert max(abs(a - b) for a, b in zip(one, other, strict=True)) > 0.3
