"""The demonstration: one long prompt on a real model, plain pipeline against V, on this machine.

Owns what is run and what is concluded from it. The command line prints it (`cli.demo`), `report`
draws it.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_vpp.bench.compare import Cases, Measured, compare
from vllm_vpp.bench.document import document
from vllm_vpp.bench.dtype import fast_dtype
from vllm_vpp.bench.engine import Arm, Request
from vllm_vpp.bench.smollm2 import long_context, smollm2
from vllm_vpp.bench.stats import Ratio, paired_ratio
from vllm_vpp.machine import machine

__all__ = ["CPP", "LONGEST", "VPP", "Demo", "affordable", "run"]

CPP, VPP = "CPP", "VPP"
ANSWER_TOKENS = 24
LONGEST = 16_000  # tokens, where the machine is fast enough
RUNS_S = 800.0  # what all runs may take together for that
_SHORTEST = 4000
_EVEN = 6100.0  # tokens at which SmolLM2-135M works as much on attention as on all else


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """Everything the demonstration found, in the order in which it was measured."""

    tokens: int
    chunk: int
    ranks: int
    runs: tuple[Measured, ...]
    answer: str
    command: str

    def of(self, arm: str) -> list[Measured]:
        """Runs of one arm."""
        return [run for run in self.runs if run.arm == arm]

    def median(self, arm: str) -> Measured:
        """The run whose TTFT is the (lower) median of its arm."""
        return sorted(self.of(arm), key=lambda run: run.ttft)[(len(self.of(arm)) - 1) // 2]

    @property
    def ratio(self) -> Ratio:
        """TTFT of the V over that of the plain pipeline, pair by pair."""
        return paired_ratio([r.ttft for r in self.of(VPP)], [r.ttft for r in self.of(CPP)])

    @property
    def same_tokens(self) -> bool:
        """Whether all runs of both arms gave the same tokens."""
        return len({run.replies[0].tokens for run in self.runs}) == 1

    @property
    def same_logprobs(self) -> bool:
        """Whether all log-probabilities are finite and bitwise equal over all runs."""
        found = {run.replies[0].logprobs for run in self.runs}
        return len(found) == 1 and all(map(math.isfinite, next(iter(found))))

    def as_dict(self) -> dict[str, Any]:
        """Everything raw, for JSON."""
        return {
            "tokens": self.tokens,
            "chunk": self.chunk,
            "ranks": self.ranks,
            "command": self.command,
            "machine": machine(),
            "answer": self.answer,
            "same_tokens": self.same_tokens,
            "same_logprobs": self.same_logprobs,
            "ttft_ratio": self.ratio._asdict(),
            "ttft_median": {a: statistics.median(r.ttft for r in self.of(a)) for a in (CPP, VPP)},
            "runs": [run.as_dict() for run in self.runs],
            "timelines": {
                arm: timeline.to_json()
                for arm in (CPP, VPP)
                if (timeline := self.median(arm).timeline) is not None
            },
        }


def affordable(known: int, seconds: float, runs: int, chunk: int) -> int:
    """Tokens of a prompt, `LONGEST` at most, that `runs` runs can take in `RUNS_S`.

    `known` tokens took `seconds`. Time grows with the operations of a causal prefill. Whole chunks
    are left out, so that the last one is as large as that of `LONGEST`.
    """

    def work(tokens: int) -> float:
        return tokens + tokens**2 / _EVEN

    budget = RUNS_S / runs / seconds * work(known)
    lengths = range(LONGEST, _SHORTEST, -chunk)
    return next((n for n in lengths if work(n) <= budget), lengths[-1])


def run(
    *,
    tokens: int | None,
    chunk: int,
    pairs: int,
    folder: Path,
    command: str,
    tell: Callable[[str], object],
    ranks: int = 2,
) -> Demo:
    """Prepare the model and the prompt, then measure `pairs` interleaved pairs.

    Without `tokens` the prompt has `LONGEST`, or fewer on a machine that would take too long.
    Raises EngineError when an engine does not start, InputError when the model is not installed.
    """
    path = smollm2(tell=tell)
    tokenizer = _tokenizer(path)
    chosen = LONGEST if tokens is None else tokens
    length = chosen + ANSWER_TOKENS + 8
    shared: dict[str, Any] = {
        "model": str(path),
        "ranks": ranks,
        "chunk": chunk,
        "max_model_len": length,
        "options": {"dtype": fast_dtype(), "hf_overrides": long_context(length)},
    }
    arms = [
        Arm(name=CPP, vpp={"layout": "linear"}, **shared),
        Arm(name=VPP, vpp={"layout": "v"}, **shared),
    ]

    def asked(length: int) -> Cases:
        return {"": [Request(prompt=document(tokenizer, length), max_tokens=ANSWER_TOKENS)]}

    def adapt(known: int, seconds: float) -> Cases:
        nonlocal chosen
        chosen = affordable(known, seconds, 2 * pairs, chunk)
        tell(f"the prompt has {chosen} tokens")
        return asked(chosen)

    measuring = compare(
        arms,
        asked(chosen),
        rounds=range(pairs),
        folder=folder,
        tell=tell,
        adapt=adapt if tokens is None else None,
    )
    runs = list(measuring)
    return Demo(
        tokens=chosen,
        chunk=chunk,
        ranks=ranks,
        runs=tuple(runs),
        answer=_answer(tokenizer, runs[0].replies[0].tokens),
        command=command,
    )


def _tokenizer(path: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path)


def _answer(tokenizer: Any, tokens: Sequence[int]) -> str:
    """The model's answer up to its end-of-turn token."""
    ends = [i for i, token in enumerate(tokens) if token == tokenizer.eos_token_id]
    text: str = tokenizer.decode(tokens[: ends[0]] if ends else tokens, skip_special_tokens=True)
    return text.strip()
