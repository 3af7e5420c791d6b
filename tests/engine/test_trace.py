"""A recorded trace of a V on two ranks: complete, as decided, with transfers beside compute."""

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
from engine_runs import CHUNK, TwoRanks, prompt

from vllm_vpp.core.batch import MicroBatch
from vllm_vpp.core.cost import StageCost
from vllm_vpp.core.dispatch import Dispatcher
from vllm_vpp.core.metrics import measure
from vllm_vpp.core.order import Order
from vllm_vpp.core.schedule import Action, Schedule
from vllm_vpp.core.timeline import SpanKind, Timeline
from vllm_vpp.core.trace import Run, read_run

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

LONG = 16_000


@pytest.fixture(scope="module")
def recorded(two_ranks: TwoRanks) -> Run:
    return read_run(two_ranks.trace)


def long_prompt(run: Run) -> list[MicroBatch]:
    """Micro-batches of the first request of 16,000 tokens, prefill and decode."""
    request = next(
        chunk.request
        for batch in run.timeline.micro_batches
        for chunk in batch.chunks
        if chunk.prefix + chunk.tokens == LONG
    )
    return [b for b in run.timeline.micro_batches if any(c.request == request for c in b.chunks)]


def of_batches(timeline: Timeline, indices: set[int]) -> Timeline:
    return Timeline(
        layout=timeline.layout,
        spans=tuple(s for s in timeline.spans if s.micro_batch in indices),
        micro_batches=timeline.micro_batches,
        source=timeline.source,
    )


def test_every_action_runs_once_and_one_at_a_time(recorded: Run) -> None:
    timeline = recorded.timeline
    full = [b.index for b in timeline.micro_batches if b.chunks]
    assert len(full) > 200
    computed = [s for s in timeline.spans if s.kind is SpanKind.COMPUTE]
    count = Counter((s.stage, s.micro_batch) for s in computed)
    assert count == Counter(itertools.product(range(timeline.layout.stages), full))
    assert all(timeline.layout.owner(s.stage) == s.rank for s in computed)
    for rank in range(timeline.layout.ranks):
        spans = sorted(timeline.of(rank, SpanKind.COMPUTE), key=lambda s: s.start_ns)
        assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(spans))
    # a compute span ends when the worker returns, a little after its output was sent: what comes
    # before a stage is its input, received from another rank or computed by the same one
    ready = {(s.stage, s.micro_batch): s.end_ns for s in timeline.spans if s.kind is SpanKind.RECV}
    for s in computed:
        if timeline.layout.enters_by_turn(s.stage + 1):
            ready[s.stage + 1, s.micro_batch] = s.end_ns
    assert all(ready[s.stage, s.micro_batch] <= s.start_ns for s in computed if s.stage)
    starts = {(s.stage, s.micro_batch): s.start_ns for s in computed}
    assert all(starts[s.stage - 1, s.micro_batch] < s.start_ns for s in computed if s.stage)
    for stage in range(timeline.layout.stages):
        order = [
            s.micro_batch for s in sorted(computed, key=lambda s: s.start_ns) if s.stage == stage
        ]
        assert order == full


def test_transfers_go_where_ranks_change_and_not_at_the_turn(recorded: Run) -> None:
    timeline = recorded.timeline
    full = [b.index for b in timeline.micro_batches if b.chunks]
    for kind in (SpanKind.SEND, SpanKind.RECV):
        moved = Counter((s.stage, s.micro_batch) for s in timeline.spans if s.kind is kind)
        assert moved == Counter(itertools.product((1, 3), full))


def test_ranks_run_the_order_that_the_dispatcher_decides(recorded: Run) -> None:
    batches = long_prompt(recorded)
    timeline = recorded.timeline
    assert len(batches) == -(-LONG // CHUNK) + 15
    first = batches[0].index
    assert [b.index - first for b in batches] == list(range(len(batches)))
    ran = [
        [
            Action(s.stage, s.micro_batch - first)
            for s in timeline.of(rank, SpanKind.COMPUTE)
            if 0 <= s.micro_batch - first < len(batches)
        ]
        for rank in range(timeline.layout.ranks)
    ]
    decided = simulated(recorded, batches)
    assert [list(actions) for actions in decided.actions] == ran
    assert decided.actions[0] != simulated(recorded, batches, order="async").actions[0]


def test_a_chunk_does_not_wait_for_the_result_of_the_one_before(recorded: Run) -> None:
    """No token is sampled in the middle of a prompt: as many chunks as may be are under way."""
    chunks = [b.index for b in long_prompt(recorded) if b.tokens > 1]
    others = recorded.timeline.layout.depth() - 1
    for number, index in enumerate(chunks[:-others]):
        result = recorded.result_ns[index]
        after = [later for later in chunks[number + 1 :] if recorded.submitted_ns[later] < result]
        assert len(after) >= others, f"chunk {number} has only {len(after)} behind it"


def simulated(run: Run, batches: list[MicroBatch], order: str = "greedy") -> Schedule:
    """The order for these micro-batches on ranks at rest; decode waits for the token before."""
    layout, cost = run.timeline.layout, StageCost.by_layers(run.law, run.layers)
    dispatcher = Dispatcher(order=Order.of(order, layout), cost=cost)
    placed = []
    depth, oldest = layout.depth(), 0
    for index, batch in enumerate(batches):
        is_decode = batch.tokens == 1
        while index - oldest == depth or (is_decode and oldest < index):
            placed += dispatcher.settle(oldest)
            dispatcher.retire(oldest)
            oldest += 1
        dispatcher.submit(MicroBatch(index, batch.chunks))
    while oldest < len(batches):
        placed += dispatcher.settle(oldest)
        dispatcher.retire(oldest)
        oldest += 1
    return Schedule.from_order(layout, [p.action for p in placed])


def test_computing_goes_on_during_a_transfer(recorded: Run) -> None:
    prefill = {b.index for b in long_prompt(recorded) if b.tokens > 1}
    timeline = of_batches(recorded.timeline, prefill)
    metrics = measure(timeline)
    assert metrics.overlap_ratio is not None
    print(f"overlap ratio {metrics.overlap_ratio:.2f}, idle {metrics.idle_ratio:.2f}")
    assert metrics.overlap_ratio > 0.3
    for stage in (1, 3):  # both directions: the receiver of each computes meanwhile
        receiver = timeline.layout.owner(stage)
        compute = list(timeline.of(receiver, SpanKind.COMPUTE))
        transfers = [s for s in timeline.of(receiver, SpanKind.RECV) if s.stage == stage]
        beside = [
            t
            for t in transfers
            if any(c.start_ns < t.end_ns and t.start_ns < c.end_ns for c in compute)
        ]
        assert len(beside) > len(transfers) / 4, stage


RECORDS = {"b": 4, "d": 3, "p": 2, "c": 5, "s": 5, "r": 6, "m": 4}
HEADER = {
    "block_size", "dtype", "in_flight", "law", "layers", "max_num_batched_tokens", "model", "order",
    "rank", "ranks", "sweeps", "vllm",
}  # fmt: skip


def test_trace_files_are_private_and_hold_no_prompt(two_ranks: TwoRanks) -> None:
    files = sorted(two_ranks.trace.iterdir())
    assert [f.name for f in files] == ["engine.jsonl", "machine.json", "rank0.jsonl", "rank1.jsonl"]
    assert two_ranks.trace.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    for file in files:
        if file.suffix == ".json":
            continue
        header, *records = map(json.loads, file.read_text().splitlines())
        assert set(header) <= HEADER
        assert {r[0]: len(r) for r in records}.items() <= RECORDS.items()
        assert not holds(file, prompt(LONG)), file


def test_a_trace_says_what_it_was_made_on(recorded: Run) -> None:
    assert {"processor", "cores", "memory", "torch", "vllm-vpp"} <= recorded.machine.keys()
    assert recorded.machine["device"] == "2 x cpu"
    assert str(Path.home()) not in json.dumps(recorded.machine)


def holds(file: Path, tokens: list[int]) -> bool:
    """Whether four tokens of the prompt stand in a row anywhere."""
    text = file.read_text().replace(" ", "")
    return any(
        ",".join(map(str, tokens[i : i + 4])) in text for i in range(0, len(tokens), LONG // 10)
    )
