"""Starts one engine, runs the steps of a spec and writes what it answered.

A script, since vLLM's workers import the main module again. Arguments: the spec (JSON, see
`engine_runs.Engine`) and the file to write. Every step is a JSON object: `do` names a function
below, the rest are its arguments; `name` is where its answer goes.
"""

import json
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
from vllm import LLM, SamplingParams

Tokens = list[int]


def generate(
    llm: LLM,
    prompts: list[Tokens],
    *,
    together: bool = False,
    sampling: dict[str, Any] | list[dict[str, Any]],
    priority: list[int] | None = None,
) -> dict[str, Any]:
    """Tokens, log-probabilities of the chosen tokens and cached prompt tokens, per prompt."""
    each = sampling if isinstance(sampling, list) else [sampling] * len(prompts)
    params = [SamplingParams(**{"ignore_eos": True, "logprobs": 0, **one}) for one in each]
    began = time.monotonic()
    requests = [{"prompt_token_ids": tokens} for tokens in prompts]
    if together:
        results = llm.generate(requests, params, use_tqdm=False, priority=priority)
    else:
        results = [
            llm.generate([request], [one], use_tqdm=False)[0]
            for request, one in zip(requests, params, strict=True)
        ]
    seconds = time.monotonic() - began
    return {"seconds": seconds, "outputs": [answer(result) for result in results]}


def embed(llm: LLM, prompts: list[Tokens]) -> list[list[float]]:
    """What a pooling model makes of each prompt, all submitted at once."""
    results = llm.embed([{"prompt_token_ids": tokens} for tokens in prompts], use_tqdm=False)
    return [[float(value) for value in result.outputs.embedding] for result in results]


def several(llm: LLM, prompts: list[Tokens], sampling: dict[str, Any]) -> list[list[Tokens]]:
    """Tokens of every sample, per prompt."""
    params = SamplingParams(**{"ignore_eos": True, **sampling})
    requests = [{"prompt_token_ids": tokens} for tokens in prompts]
    results = llm.generate(requests, params, use_tqdm=False)
    return [[list(sample.token_ids) for sample in result.outputs] for result in results]


def beside(llm: LLM, decoding: Tokens, prompt: Tokens) -> dict[str, Any]:
    """One request decodes while another's prompt is computed: seconds between its tokens then."""
    engine = llm.llm_engine
    long, short = (
        SamplingParams(temperature=0, ignore_eos=True, max_tokens=tokens) for tokens in (1000, 4)
    )
    engine.add_request("decoding", {"prompt_token_ids": decoding}, long)
    while not any(output.outputs[0].token_ids for output in engine.step()):
        pass
    engine.add_request("prompt", {"prompt_token_ids": prompt}, short)
    times: list[float] = []
    tokens: dict[str, Tokens] = {}
    while "prompt" not in tokens:
        for output in engine.step():
            if output.request_id == "decoding":
                times.append(time.monotonic())
            elif output.finished:
                tokens["prompt"] = list(output.outputs[0].token_ids)
    engine.abort_request(["decoding"])
    return {"gaps": [b - a for a, b in pairwise(times)], "tokens": tokens["prompt"]}


def answer(result: Any) -> dict[str, Any]:
    chosen = result.outputs[0]
    found = {
        "tokens": list(chosen.token_ids),
        "logprobs": [
            position[token].logprob
            for position, token in zip(chosen.logprobs, chosen.token_ids, strict=True)
        ],
        "cached": result.num_cached_tokens,
    }
    if result.prompt_logprobs:
        found["prompt_logprobs"] = [
            position[token].logprob
            for position, token in zip(
                result.prompt_logprobs[1:], result.prompt_token_ids[1:], strict=True
            )
        ]
    return found


def rpc(llm: LLM, method: str, args: list[Any]) -> list[Any]:
    """Call a method of `engine_faults.Faults` in every worker."""
    answers: list[Any] = llm.collective_rpc(method, args=tuple(args))
    return answers


def reset(llm: LLM) -> bool:
    """Empty the prefix cache."""
    return bool(llm.reset_prefix_cache())


def idle(llm: LLM, seconds: float) -> dict[str, float]:
    """Share of a core that each process uses while nothing is asked of the engine.

    Workers wait for their queue awake for a second after the last message, so that second is left
    out.
    """
    del llm
    time.sleep(2)
    before = dict(cpu_seconds())
    time.sleep(seconds)
    return {name: (spent - before.get(name, 0.0)) / seconds for name, spent in cpu_seconds()}


def cpu_seconds() -> Iterator[tuple[str, float]]:
    own = psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        spent = process.cpu_times()
        yield f"{process.pid} {process.name()}", spent.user + spent.system


def config(llm: LLM) -> dict[str, Any]:
    """What the engine was built with."""
    built = llm.llm_engine.vllm_config
    return {
        "executor": str(built.parallel_config.distributed_executor_backend),
        "vpp": (built.additional_config or {}).get("vpp"),
        "max_concurrent_batches": built.max_concurrent_batches,
        "blocks": built.cache_config.num_gpu_blocks,
    }


def count_preemptions(llm: LLM) -> None:
    """From now on count them; see `preemptions`."""
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    preempt = scheduler._preempt_request
    scheduler.test_preemptions = 0

    def counted(*args: Any, **kwargs: Any) -> None:
        scheduler.test_preemptions += 1
        preempt(*args, **kwargs)

    scheduler._preempt_request = counted


def preemptions(llm: LLM) -> int:
    """Since `count_preemptions`."""
    return int(llm.llm_engine.engine_core.engine_core.scheduler.test_preemptions)


def count_ahead(llm: LLM) -> None:
    """From now on count the steps submitted before their tokens were known; see `ahead`."""
    flow = llm.llm_engine.engine_core.engine_core.model_executor.flow
    submit = flow.submit
    flow.test_ahead = 0

    def counted(step: Any) -> Any:
        flow.test_ahead += bool(step.awaits)
        return submit(step)

    flow.submit = counted


def ahead(llm: LLM) -> int:
    """Since `count_ahead`."""
    return int(llm.llm_engine.engine_core.engine_core.model_executor.flow.test_ahead)


def drain(llm: LLM) -> dict[str, int]:
    """Step until connectors have sent all; requests and KV blocks that are still held then."""
    core = llm.llm_engine.engine_core.engine_core
    for _ in range(500):
        if not core.scheduler.has_requests() and not core.batch_queue:
            break
        core.step_fn()
    pool = core.scheduler.kv_cache_manager.block_pool
    held = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()  # one block is never given out
    return {"requests": len(core.scheduler.requests), "blocks": held}


STEPS = {
    step.__name__: step
    for step in (
        generate,
        several,
        beside,
        embed,
        rpc,
        reset,
        idle,
        config,
        drain,
        count_ahead,
        ahead,
        count_preemptions,
        preemptions,
    )
}


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    began = time.monotonic()
    llm = LLM(**spec["engine"])
    answers: dict[str, Any] = {"start_seconds": time.monotonic() - began}
    for step in spec["steps"]:
        arguments = {k: v for k, v in step.items() if k not in ("do", "name")}
        answers[step["name"]] = STEPS[step["do"]](llm, **arguments)
    llm.llm_engine.engine_core.shutdown()
    Path(sys.argv[2]).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
