"""Each important check, shown to fail when the code behind it is broken on purpose."""

import sys
from collections.abc import Callable

import pytest

from vllm_vpp.core.batch import MicroBatch
from vllm_vpp.core.channels import one_group_per_sweep, stuck_actions
from vllm_vpp.core.chunking import chunk_plan, make_policy
from vllm_vpp.core.chunking import view as chunk_view
from vllm_vpp.core.cost import QuadraticCost, StageCost
from vllm_vpp.core.dispatch import Dispatcher
from vllm_vpp.core.layout import Layout
from vllm_vpp.core.metrics import measure
from vllm_vpp.core.order import Order
from vllm_vpp.sim import Links, Setup, at_once, simulate
from vllm_vpp.sim import spans as spans_module
from vllm_vpp.sim.simulate import Run

NS = 1_000_000_000
Patch = Callable[[pytest.MonkeyPatch], None]


class Growing:
    """Whole-model time of chunk k: k + 1 units; the same on every stage."""

    def __init__(self, stages: int) -> None:
        self.stages = stages

    def time(self, stage: int, micro_batch: MicroBatch) -> float:
        return (micro_batch.index + 1) * 12 / self.stages / NS


def run(layout: Layout, count: int = 8, *, latency: int = 0) -> Run:
    policy = make_policy({"policy": "fixed", "chunk": 1}, law=None, ranks=layout.ranks)
    setup = Setup(
        layout=layout,
        cost=Growing(layout.stages),
        policy=policy,
        block=1,
        depth=10**6,
        links=Links(latency=latency / NS),
    )
    return simulate(at_once([count]), setup)


def linear_is_exact() -> bool:
    work, last = 12 * sum(range(1, 9)), 12 * 8
    return round(run(Layout(3, 1)).makespan * NS) == work // 3 + 2 * last // 3


def a_v_finishes_chunks_as_it_goes() -> bool:
    first = [str(action) for action in run(Layout(2, 2)).schedule.actions[0]]
    return first.index("s3/C0") < first.index("s0/C4")


def schedule_is_legal_and_cannot_hang() -> bool:
    schedule = run(Layout(2, 2)).schedule
    schedule.check()
    return stuck_actions(schedule, one_group_per_sweep) == []


def nothing_is_sent_at_a_turn() -> bool:
    sent = {s.stage for s in run(Layout(2, 2), latency=5).timeline().spans if s.kind.is_transfer}
    return sent == {1, 3}


def metrics_sum() -> bool:
    metrics = measure(run(Layout(3, 2), latency=5).timeline())
    parts = [r.compute + r.exposed + r.fill + r.drain + r.stall + r.host for r in metrics.ranks]
    waits = sum(r.stall for r in metrics.ranks)
    return waits > 0 and parts == pytest.approx([metrics.makespan] * 3)


def chunks_end_on_blocks() -> bool:
    policy = make_policy({"policy": "fixed", "chunk": 1000}, law=None, ranks=1)
    plan = chunk_plan(policy, 5000, limit=4096)
    return sum(plan) == 5000 and all(sum(plan[:k]) % 16 == 0 for k in range(len(plan)))


def shares_sum_to_the_whole() -> bool:
    law = QuadraticCost(c0=1.0, b=1.0, a=0.0)
    cost = StageCost.by_layers(law, [3, 5])
    batch = run(Layout(1, 1), 1).micro_batches[0]
    return sum(cost.times(batch)) == pytest.approx(law.seconds(batch))


def shallow_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Order, "preference", lambda self, rank: self.layout.stages_of(rank))


def turns_transfer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Layout, "enters_by_turn", lambda self, stage: False)


def stages_wait_for_nobody(patch: pytest.MonkeyPatch) -> None:
    def send(self: Dispatcher, stage: int, ready_ns: int, lasts_ns: int) -> tuple[int, int]:
        self._arrivals[stage].append(0)
        return ready_ns, ready_ns

    patch.setattr(Dispatcher, "_send", send)


def late_completion(patch: pytest.MonkeyPatch) -> None:
    place = Dispatcher._place

    def slow(self: Dispatcher, rank: int, stage: int, time_ns: int) -> object:
        placed = place(self, rank, stage, time_ns)
        self._free_ns[rank] += 1
        self._wake(self._free_ns[rank], rank)
        return placed

    patch.setattr(Dispatcher, "_place", slow)


def no_receives(patch: pytest.MonkeyPatch) -> None:
    whole = spans_module.spans_of
    patch.setattr(
        sys.modules["vllm_vpp.sim.simulate"],
        "spans_of",
        lambda layout, placed: tuple(
            s for s in whole(layout, placed) if s.kind not in {"wait", "recv"}
        ),
    )


def no_blocks(patch: pytest.MonkeyPatch) -> None:
    def fit(size: int, view: chunk_view.View) -> int:
        return min(size, view.limit, view.length - view.prefix)

    patch.setattr("vllm_vpp.core.chunking.fit", fit)


def wrong_shares(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StageCost, "times", lambda self, batch: [self.model.seconds(batch)] * 2)


CASES: dict[str, tuple[Callable[[], bool], Patch]] = {
    "the deepest stage must go first": (a_v_finishes_chunks_as_it_goes, shallow_first),
    "a turn must not transfer": (nothing_is_sent_at_a_turn, turns_transfer),
    "a stage must wait for its input": (linear_is_exact, stages_wait_for_nobody),
    "a rank must not idle between actions": (linear_is_exact, late_completion),
    "receives must be recorded": (metrics_sum, no_receives),
    "chunks must end on blocks": (chunks_end_on_blocks, no_blocks),
    "shares must sum to one": (shares_sum_to_the_whole, wrong_shares),
}


@pytest.mark.parametrize(("check", "mutation"), CASES.values(), ids=CASES.keys())
def test_breaking_the_code_breaks_the_check(
    check: Callable[[], bool], mutation: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check()
    mutation(monkeypatch)
    try:
        survived = check()
    except (AssertionError, IndexError):  # the code's own invariants noticed
        survived = False
    assert not survived


def test_the_schedule_itself_is_checked() -> None:
    assert schedule_is_legal_and_cannot_hang()
