"""The child process that hosts one vLLM engine for measurements; `engine` is its parent's side.

Owns the loop that notes when each token came back, as a client of vLLM's own LLMEngine would see
it. One JSON value a line: a specification first, then one command per run; answers go to a file
descriptor of their own, since vLLM logs to the usual ones. `sender` adds requests when due.
"""

import json
import os
import signal
import sys
import time
from typing import Any, NoReturn, TextIO

from vllm_vpp.bench.sender import Sender
from vllm_vpp.lifetime import end_with_parent

__all__ = ["main"]


def _start(spec: dict[str, Any]) -> Any:
    from vllm import EngineArgs, LLMEngine
    from vllm.config import ProfilerConfig

    if "profiler_config" in spec:
        spec["profiler_config"] = ProfilerConfig(**spec["profiler_config"])
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
    """Serve requests, each sent when due; returns what a client saw."""

    def send(index: int) -> None:
        prompt = {"prompt_token_ids": requests[index]["prompt"]}
        engine.add_request(f"{serial}-{index}", prompt, _parameters(requests[index]))

    seen: list[dict[str, Any]] = [{"token_ns": [], "tokens": [], "logprobs": []} for _ in requests]
    sender = Sender([(r["at"], r["among"]) for r in requests], send)
    began = sender.start()
    while not sender.all_answered:
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
            if output.finished:
                sender.answered()
    ended = time.monotonic_ns()
    for record, sent_ns in zip(seen, sender.sent_ns, strict=True):
        record["sent_ns"] = sent_ns
    return {"began_ns": began, "ended_ns": ended, "requests": seen}


def _serve(engine: Any, command: dict[str, Any], serial: int) -> dict[str, Any]:
    """One run, watched as the command says; under vLLM's own profiler if it says so."""
    if command["watch"] is not None:
        engine.collective_rpc("vpp_watch", kwargs=command["watch"])
    if not command["profile"]:
        return _run(engine, command["requests"], serial)
    engine.start_profile()
    try:
        return _run(engine, command["requests"], serial)
    finally:
        engine.stop_profile()


def _leave(*_: object) -> NoReturn:
    """On SIGTERM: unwind, so that vLLM ends its own processes."""
    sys.exit(1)


def main() -> int:
    """Serve until standard input ends, or the process that started this one."""
    signal.signal(signal.SIGTERM, _leave)
    end_with_parent(program=True)  # a run may take minutes, in which nobody reads standard input
    answers: TextIO = os.fdopen(int(sys.argv[1]), "w", encoding="utf-8")

    def answer(value: Any) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    engine = _start(json.loads(sys.stdin.readline()))
    answer({"ready": True})
    for serial, line in enumerate(sys.stdin):
        answer(_serve(engine, json.loads(line), serial))
    return 0


if __name__ == "__main__":
    sys.exit(main())
