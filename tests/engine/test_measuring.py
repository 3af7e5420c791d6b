"""Measurements of a real engine: requests at their times, a trace and a profile of one run."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from vllm_vpp.bench.arms import random_prompt
from vllm_vpp.bench.compare import Measured, compare
from vllm_vpp.bench.dtype import fast_dtype
from vllm_vpp.bench.engine import Arm, Request
from vllm_vpp.bench.models import checkpoint, small
from vllm_vpp.core.timeline import SpanKind
from vllm_vpp.core.trace import read_run
from vllm_vpp.profiles.operators import OperatorGroup

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

LONG, LATER_S = 6000, 0.1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def measured(folder: Path) -> Measured:
    """A V under the profiler: a long prompt, and a short one while it runs."""
    arm = Arm(
        name="V",
        model=str(checkpoint(small("llama", layers=8, dtype="bfloat16"))),
        ranks=2,
        chunk=512,
        max_model_len=LONG + 16,
        vpp={"layout": "v", "metrics": False},
        options={"dtype": fast_dtype()},
        profile=True,
    )
    requests = [
        Request(prompt=random_prompt(LONG, 1)),
        Request(prompt=random_prompt(64, 2), max_tokens=2, at=LATER_S),
    ]
    (found,) = compare([arm], {"": requests}, rounds=range(1), folder=folder)
    return found


def test_a_request_is_sent_at_its_time_while_another_runs(measured: Measured) -> None:
    first, second = measured.replies
    due_ns = first.sent_ns + round(LATER_S * 1e9)
    assert second.sent_ns >= due_ns - 1_000_000
    # one who waits for the first answer sends no earlier than that
    assert second.sent_ns - due_ns < (first.token_ns[0] - due_ns) / 4
    assert len(second.tokens) == 2


MEASURES = """
import sys
from pathlib import Path

from vllm_vpp.bench.arms import random_prompt
from vllm_vpp.bench.engine import Arm, Engine, Request

model, log, ranks = sys.argv[1:]
vpp = {"layout": "v"} if ranks == "2" else None
arm = Arm(
    name="one", model=model, ranks=int(ranks), chunk=512, max_model_len=32_000, vpp=vpp,
    options={"dtype": "float32"},
)
engine = Engine(arm, log=Path(log))
engine.wait_ready()
print("runs", flush=True)
engine.run([Request(prompt=random_prompt(31_000, 1))])
"""


@pytest.mark.parametrize(
    ("ranks", "processes"),
    [
        pytest.param(1, 2, id="stock vLLM: host and core"),
        pytest.param(2, 4, id="v: and two workers"),
    ],
)
def test_an_engine_ends_with_whoever_measures_in_the_middle_of_a_run(
    ranks: int, processes: int, tmp_path: Path
) -> None:
    model = str(checkpoint(small("llama", layers=8, dtype="bfloat16")))
    command = [sys.executable, "-c", MEASURES, model, str(tmp_path / "log"), str(ranks)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as measures:
        assert measures.stdout is not None
        assert measures.stdout.readline() == "runs\n"
        time.sleep(3)
        started = psutil.Process(measures.pid).children(recursive=True)
        measures.kill()
    assert len(started) >= processes
    _, alive = psutil.wait_procs(started, timeout=30)
    for process in alive:
        process.kill()
    assert not alive


def test_the_profile_of_the_run_has_both_ranks_and_their_groups(measured: Measured) -> None:
    assert measured.profile is not None
    assert [rank.rank for rank in measured.profile.ranks] == [0, 1]
    assert measured.timeline is not None
    for rank in measured.profile.ranks:
        attention, matmul = (
            rank.groups[group] for group in (OperatorGroup.ATTENTION, OperatorGroup.MATMUL)
        )
        spans = measured.timeline.of(rank.rank, SpanKind.COMPUTE)
        computing = sum(span.end_ns - span.start_ns for span in spans) * 1e-9
        assert attention.seconds > 0.05 * computing
        assert matmul.seconds > 0.05 * computing
        assert attention.seconds + matmul.seconds < measured.replies[0].ttft
        assert rank.groups[OperatorGroup.MOE].calls == 0


def test_recording_can_be_switched_in_one_engine(folder: Path) -> None:
    arm = Arm(
        name="off",
        model=str(checkpoint(small("llama", layers=4, dtype="bfloat16"))),
        ranks=2,
        chunk=256,
        max_model_len=2100,
        vpp={"layout": "v"},
        options={"dtype": fast_dtype()},
        watch={"live": False, "trace": False},
    )
    arms = [arm, replace(arm, name="on", watch={"live": True, "trace": True})]
    requests = {"": [Request(prompt=random_prompt(2048, 3), max_tokens=4)]}
    runs = list(compare(arms, requests, rounds=range(2), folder=folder / "switched"))
    assert [run.arm for run in runs] == ["off", "on", "on", "off"]
    assert len({run.replies[0].tokens for run in runs}) == 1
    assert [log.name for log in (folder / "switched").glob("*.log")] == ["on.log"]
    assert [run.timeline is not None for run in runs] == [False, True, True, False]
    recorded = read_run(folder / "switched" / "on.trace").timeline
    batches = {batch.index for batch in recorded.micro_batches}
    for run in runs:
        came = recorded.between(run.start_ns, run.replies[0].token_ns[-1])
        ran = {span.micro_batch for span in came.spans}
        chunks = [b for b in came.micro_batches if b.index in ran and b.tokens > 1]
        assert len(chunks) == (8 if run.arm == "on" else 0)
    assert {span.micro_batch for span in recorded.spans} <= batches


def test_the_trace_says_what_it_was_made_on(measured: Measured, folder: Path) -> None:
    facts = json.loads((folder / "V.trace" / "machine.json").read_text())
    assert facts["device"] == "2 x cpu"
    assert facts["cores"].isdigit()
    assert not list(folder.glob("V.profile/*.pt.trace.json.gz")), "what was read is removed"
