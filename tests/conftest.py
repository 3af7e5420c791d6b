"""Skips what this machine cannot run, and writes recordings for tests that read them."""

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import settings

from vllm_vpp.core.chunking import make_policy
from vllm_vpp.core.cost import QuadraticCost, StageCost
from vllm_vpp.core.layout import Layout
from vllm_vpp.core.timeline import SpanKind
from vllm_vpp.sim import Links, Setup, at_once, simulate

# how long an example takes says more about what else runs; hangs end by pytest's own limit
settings.register_profile("vpp", deadline=None)
settings.load_profile("vpp")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    no_vllm = pytest.mark.skip(reason="vLLM is not installed")
    no_gpu = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if item.get_closest_marker("vllm") and find_spec("vllm") is None:
            item.add_marker(no_vllm)
        if item.get_closest_marker("gpu") and not Path("/dev/nvidiactl").exists():
            item.add_marker(no_gpu)


class Record(Protocol):
    """Writes a trace folder of `layout` for `prompts`, as the plugin would have recorded it."""

    def __call__(
        self, folder: Path, layout: str, prompts: Sequence[int], chunk: int = ...
    ) -> Path: ...


@pytest.fixture(scope="session")
def record() -> Record:
    return write_recording


def write_recording(folder: Path, layout: str, prompts: Sequence[int], chunk: int = 4096) -> Path:
    """A simulated run in the recorder's files; the clock starts at 10 s, a token has 8 bytes."""
    law = QuadraticCost(c0=0.01, b=1e-5, a=1e-10)
    shape = Layout.of(layout, 2)
    run = simulate(
        at_once(prompts),
        Setup(
            layout=shape,
            cost=StageCost.by_layers(law, [1] * shape.stages),
            policy=make_policy({"policy": "fixed", "chunk": chunk}, law=None, ranks=2),
            links=Links(latency=0.004),
        ),
    )
    timeline = run.timeline()
    start_ns = 10_000_000_000
    lines: dict[str, list[Any]] = {
        "engine": [
            {
                "ranks": 2,
                "sweeps": shape.sweeps,
                "order": "greedy",
                "in_flight": 5,
                "layers": [1] * shape.stages,
                "law": {"c0": 0.01, "b": 1e-5, "a": 1e-10},
                "model": "tiny",
                "dtype": "torch.float32",
                "max_num_batched_tokens": chunk,
                "vllm": "0.32.0",
            }
        ],
        **{f"rank{r}": [{"rank": r, "ranks": 2, "sweeps": shape.sweeps}] for r in range(2)},
    }
    tokens = {batch.index: batch.tokens for batch in timeline.micro_batches}
    ends: dict[int, int] = {}
    for rank, kind, stage, index, start, end in timeline.spans:
        own, begin, finish = lines[f"rank{rank}"], start_ns + start, start_ns + end
        if kind is SpanKind.COMPUTE:
            own.append(["c", stage, index, begin, finish])
            ends[index] = max(ends.get(index, 0), finish)
        elif kind is SpanKind.SEND:
            own.append(["s", stage, index, begin, 8 * tokens[index]])
        elif kind is SpanKind.RECV:
            own.append(["r", stage, index, start_ns, finish, 0])
    for batch in timeline.micro_batches:
        first = min(s.start_ns for s in timeline.spans if s.micro_batch == batch.index)
        chunks = [list(c) for c in batch.chunks]
        lines["engine"].append(["b", batch.index, chunks, start_ns + first - 1000])
    lines["engine"] += [["d", index, end + 1000] for index, end in sorted(ends.items())]
    folder.mkdir(parents=True)
    for name, records in lines.items():
        text = "".join(json.dumps(line) + "\n" for line in records)
        (folder / f"{name}.jsonl").write_text(text, encoding="ascii")
    return folder
