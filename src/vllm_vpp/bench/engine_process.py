"""The child process that hosts one vLLM engine for measurements; `engine` is its parent's side.

Owns the loop that adds requests when they are due and notes when each token came back, as a client
of vLLM's own LLMEngine would see it. One JSON value a line: a specification first, then one command
per run; answers go to a file descriptor of their own, since vLLM logs to the usual ones.
"""

import json
import os
import sys
import time
from typing import Any, TextIO

__all__ = ["main"]


def _start(spec: dict[str, Any]) -> Any:
    from vllm import EngineArgs, LLMEngine

    return LLMEngine.from_engine_args(EngineArgs(**spec))


def _parameters(request: dict[str, Any]) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=0.0,
        max_tokens=request["max_tokens"],
        ignore_eos=request.get("ignore_eos", True),
        logprobs=0,
        output_kind=RequestOutputKind.DELTA,
        detokenize=False,
    )


def _run(engine: Any, requests: list[dict[str, Any]], serial: int) -> dict[str, Any]:
    """Serve requests, each added at its offset `at` in seconds; returns what a client saw."""
    began = time.monotonic_ns()
    waiting = sorted(enumerate(requests), key=lambda item: (item[1].get("at", 0.0), item[0]))
    seen: list[dict[str, Any]] = [
        {"sent_ns": 0, "token_ns": [], "tokens": [], "logprobs": []} for _ in requests
    ]
    while waiting or engine.has_unfinished_requests():
        while waiting and time.monotonic_ns() - began >= waiting[0][1].get("at", 0.0) * 1e9:
            index, request = waiting.pop(0)
            seen[index]["sent_ns"] = time.monotonic_ns()
            prompt = {"prompt_token_ids": request["prompt"]}
            engine.add_request(f"{serial}-{index}", prompt, _parameters(request))
        if not engine.has_unfinished_requests():
            time.sleep(0.0005)
            continue
        for output in engine.step():
            now = time.monotonic_ns()
            record = seen[int(output.request_id.split("-")[1])]
            part = output.outputs[0]
            record["tokens"].extend(part.token_ids)
            record["token_ns"].extend([now] * len(part.token_ids))
            record["logprobs"].extend(
                entry[token].logprob
                for entry, token in zip(part.logprobs or [], part.token_ids, strict=True)
            )
    return {"began_ns": began, "ended_ns": time.monotonic_ns(), "requests": seen}


def main() -> int:
    """Serve until standard input ends."""
    answers: TextIO = os.fdopen(int(sys.argv[1]), "w", encoding="utf-8")

    def answer(value: Any) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    engine = _start(json.loads(sys.stdin.readline()))
    answer({"ready": True})
    for serial, line in enumerate(sys.stdin):
        answer(_run(engine, json.loads(line), serial))
    return 0


if __name__ == "__main__":
    sys.exit(main())
