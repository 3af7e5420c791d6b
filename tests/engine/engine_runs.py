"""Engines that tests compare, each started once per test session.

Owns how an engine is described, started in a process group of its own, and ended for certain. What
runs inside is `run_engine`.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from vllm_vpp.bench.models import checkpoint, tiny

HERE = Path(__file__).parent
LAYERS = 11  # no multiple of any number of stages here
MAX_MODEL_LEN = 32_768
CHUNK = 512  # tokens per step
VOCABULARY = 1024
GREEDY = {"temperature": 0, "max_tokens": 16}
# Largest difference of log-probabilities where steps differ between engines, so that float32 sums
# run in another order. Measured: Llama 4.3e-6, Qwen3-MoE 5.3e-6, DeepSeek-V3 (bf16) 0.
TOGETHER_BOUND = {"llama": 1e-5, "qwen3-moe": 1e-5, "deepseek-v3": 1e-5}


class Output(NamedTuple):
    """What came back for one prompt; `cached` counts prompt tokens found in the prefix cache."""

    tokens: list[int]
    logprobs: list[float]
    cached: int
    prompt_logprobs: list[float] | None = None


@dataclass(frozen=True)
class Engine:
    """An engine on the CPU backend, one thread per rank. `vpp` None: stock vLLM."""

    architecture: str = "llama"
    ranks: int = 1
    vpp: dict[str, Any] | None = None
    caching: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def dtype(self) -> str:
        return tiny(self.architecture, layers=LAYERS, max_positions=MAX_MODEL_LEN).dtype

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `vllm.LLM`."""
        spec = tiny(self.architecture, layers=LAYERS, max_positions=MAX_MODEL_LEN)
        arguments = {
            "model": str(checkpoint(spec)),
            "dtype": spec.dtype,
            "enforce_eager": True,
            "skip_tokenizer_init": True,
            "max_model_len": MAX_MODEL_LEN,
            "max_num_batched_tokens": CHUNK,
            "pipeline_parallel_size": self.ranks,
            "distributed_executor_backend": "mp",
            "enable_prefix_caching": self.caching,
            "disable_log_stats": True,
        }
        if self.vpp is not None:
            arguments["additional_config"] = {"vpp": self.vpp}
        return arguments | self.options

    def variables(self) -> dict[str, str]:
        """Environment of the process."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "PYTEST_"))}
        paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        cores = [str(rank % len(os.sched_getaffinity(0))) for rank in range(self.ranks)]
        return (
            kept
            | {
                "HF_HUB_OFFLINE": "1",
                "PYTHONPATH": os.pathsep.join(paths),
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "|".join(cores),
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                "VLLM_HOST_IP": "127.0.0.1",
                "VLLM_LOGGING_LEVEL": "WARNING",
                "VLLM_NO_USAGE_STATS": "1",
            }
            | self.environment
        )


def prompt(length: int, seed: int = 0) -> list[int]:
    """Random token ids; two prompts share no first block."""
    rng = random.Random(f"{length} {seed}")
    return [rng.randrange(VOCABULARY) for _ in range(length)]


def outputs(answer: dict[str, Any]) -> list[Output]:
    """The outputs of one `generate` step."""
    return [Output(**one) for one in answer["outputs"]]


def run(
    engine: Engine,
    steps: Sequence[dict[str, Any]],
    limit_s: float = 600,
    *,
    prefix: Sequence[str] = (),
    script: str = "run_engine.py",
) -> dict[str, Any]:
    """Start the engine, run the steps, end it; returns the answers by step name.

    `prefix` comes before the command, to run it elsewhere. `script`: one that ends like it.
    """
    with tempfile.TemporaryDirectory() as folder:
        spec, result = Path(folder) / "spec.json", Path(folder) / "result.json"
        spec.write_text(json.dumps({"engine": engine.arguments(), "steps": list(steps)}))
        process = subprocess.Popen(
            [*prefix, sys.executable, str(HERE / script), str(spec), str(result)],
            env=engine.variables(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            log, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            log, _ = process.communicate()
            raise AssertionError(f"no end within {limit_s} s:\n{log[-6000:]}") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 0, log[-6000:]
        answers: dict[str, Any] = json.loads(result.read_text())
        return answers


LENGTHS = (1, 2, 7, 100, 512, 513, 2000, 16_000)
MIXED = (1, 3, 30, 513, 700, 1500, 64, 900, 2049, 5, 1024, 300)
BF16_LENGTHS = (1, 7, 100, 512, 518, 1600)
BF16_MIXED = (1, 30, 530, 700, 1500, 64, 900)


def standard(
    lengths: Iterable[int] = LENGTHS, mixed: Iterable[int] = MIXED
) -> list[dict[str, Any]]:
    """The cases that every engine of the same architecture answers."""
    alone = {"do": "generate", "prompts": [prompt(n) for n in lengths], "sampling": GREEDY}
    batch = [prompt(n, seed=1) for n in mixed]
    shared = prompt(1500, seed=2)
    return [
        {**alone, "name": "alone"},
        {**alone, "name": "again"},
        {
            "do": "generate",
            "name": "together",
            "together": True,
            "prompts": batch,
            "sampling": GREEDY | {"max_tokens": 20},
        },
        {
            "do": "generate",
            "name": "one prefix",
            "together": True,
            "prompts": [[*shared, *prompt(n, seed=3)] for n in (10, 200, 600, 900)],
            "sampling": GREEDY,
        },
    ]


# A seed takes a prompt of one chunk: with more, stock vLLM on a CPU dies (no generator offset).
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.8, "seed": 7, "top_p": 0.9, "max_tokens": 24},
    {"temperature": 0, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "max_tokens": 24},
    {"temperature": 0, "presence_penalty": 0.7, "min_tokens": 4, "max_tokens": 24},
    {"temperature": 0, "prompt_logprobs": 0, "logprobs": 3, "max_tokens": 8},
)


def samplings() -> dict[str, Any]:
    """One long prompt per way of sampling: those that need the tokens of the prompt or the past."""
    prompts = [prompt(300 if "seed" in s else 1300, seed=4 + i) for i, s in enumerate(SAMPLINGS)]
    return {"do": "generate", "name": "samplings", "prompts": prompts, "sampling": list(SAMPLINGS)}


def crowd() -> dict[str, Any]:
    """Eight prompts that together need more KV blocks than `Engine` may be given in a test."""
    return {
        "do": "generate",
        "name": "crowd",
        "together": True,
        "prompts": [prompt(n, seed=8) for n in range(900, 1700, 100)],
        "sampling": GREEDY | {"max_tokens": 140},
    }


@cache
def stock(architecture: str) -> dict[str, Any]:
    """Answers of stock vLLM on one rank, without any plugin."""
    extra = [crowd()] if architecture == "llama" else []
    engine = Engine(architecture, environment={"VLLM_PLUGINS": ""})
    return run(engine, [*cases(architecture), *extra])


BRIEF = (1, 513, 2000)


def brief() -> dict[str, Any]:
    """A few prompts alone, for engines that take long to start; `brief_answers` are stock's."""
    prompts = [prompt(n) for n in BRIEF]
    return {"do": "generate", "name": "alone", "prompts": prompts, "sampling": GREEDY}


def brief_answers() -> list[Output]:
    alone = dict(zip(LENGTHS, outputs(stock("llama")["alone"]), strict=True))
    return [alone[length] for length in BRIEF]


def cases(architecture: str) -> list[dict[str, Any]]:
    """Latent attention runs in bf16 on a CPU, where stock vLLM dies of steps of 2 to 4 tokens."""
    if architecture == "deepseek-v3":
        return [*standard(BF16_LENGTHS, BF16_MIXED), samplings()]
    return [*standard(), samplings()]


V: dict[str, Any] = {"layout": "v"}
# Method of `engine_faults.Faults` and stage. On two ranks the V has stages 0 and 3 on rank 0, 1 and
# 2 on rank 1; the turn is before stage 2.
FAULTS = {
    "two layers swapped": ("swap_layers", 1),
    "residual dropped before a transfer": ("drop_residual", 3),
    "residual dropped at the turn": ("drop_residual", 2),
    "positions of the micro-batch before": ("stale_positions", 2),
    "sent buffer reused at the turn": ("overwrite_after_send", 2),
    "sent buffer reused before the transfer is done": ("overwrite_after_send", 1),
}


class TwoRanks(NamedTuple):
    """Answers of a V on two ranks, and the folder of its trace."""

    answers: dict[str, Any]
    trace: Path


def run_two_ranks(trace: Path) -> TwoRanks:
    """All cases, idleness, then a comparison under each fault and after undoing it."""
    probe = {
        "do": "generate",
        "prompts": [prompt(n, seed=9) for n in (700, 2000)],
        "sampling": GREEDY,
    }
    steps: list[dict[str, Any]] = [
        *cases("llama"),
        {"do": "idle", "name": "idle", "seconds": 5},
        {"do": "rpc", "name": "held", "method": "held_sends", "args": []},
        {"do": "rpc", "name": "waits", "method": "shortest_wait_s", "args": []},
        {**probe, "name": "before"},
    ]
    for name, (method, stage) in FAULTS.items():
        steps += [
            {"do": "reset", "name": f"{name}: reset"},
            {"do": "rpc", "name": f"{name}: inject", "method": method, "args": [stage]},
            {**probe, "name": name},
            {"do": "rpc", "name": f"{name}: restore", "method": "restore", "args": []},
            {"do": "reset", "name": f"{name}: reset again"},
            {**probe, "name": f"{name}: restored"},
        ]
    options = {"worker_extension_cls": "engine_faults.Faults"}
    vpp = {**V, "trace_dir": str(trace)}
    return TwoRanks(run(Engine("llama", 2, vpp, options=options), steps), trace)
