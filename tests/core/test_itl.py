"""Chunks beside requests that decode: as large as the target allows, never larger."""

from hypothesis import given
from hypothesis import strategies as st

from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.core.chunking import make_policy
from vllm_vpp.core.cost import Law, QuadraticCost
from vllm_vpp.core.itl import ItlBound
from vllm_vpp.core.layout import Layout
from vllm_vpp.core.marginal import Knot, MarginalCost
from vllm_vpp.sim import Setup, simulate
from vllm_vpp.sim.request import Request

LAW = QuadraticCost(c0=0.02, b=2e-4, a=1.5e-8, gamma=1e-7)
BENT = MarginalCost(c0=0.02, knots=(Knot(0.0, 1e-4), Knot(8192.0, 3e-4)))
BLOCK = 16

laws = st.sampled_from([LAW, BENT])


def step(prefix: int, tokens: int, decodes: tuple[int, ...]) -> MicroBatch:
    return MicroBatch(0, (Chunk("p", prefix, tokens), *(Chunk("d", n, 1) for n in decodes)))


@given(
    law=laws,
    target=st.floats(0.05, 5),
    prefix=st.integers(0, 60_000),
    decodes=st.lists(st.integers(1, 60_000), max_size=8).map(tuple),
    scale=st.floats(0.3, 3),
)
def test_the_largest_chunk_keeps_to_the_target_and_one_block_more_does_not(
    law: Law, target: float, prefix: int, decodes: tuple[int, ...], scale: float
) -> None:
    bound = ItlBound(target=target, law=law, ranks=2, in_flight=5, scale=scale)
    most = bound.most(prefix, BLOCK, decodes)
    assert most % BLOCK == 0
    assert most == BLOCK or bound.seconds(step(prefix, most, decodes)) <= target * (1 + 1e-9)
    assert bound.seconds(step(prefix, most + BLOCK, decodes)) > target * (1 - 1e-9)


def test_a_step_waits_for_all_that_are_in_flight() -> None:
    """Decode beside a prompt of many equal chunks, in the simulator: in_flight T / P each."""
    layout = Layout(2, 2)
    law = QuadraticCost(c0=0.0, b=1e-3, a=0.0)
    flat = Flat(law, layout.stages)
    policy = make_policy({"policy": "fixed", "chunk": 100}, law=law, ranks=2)
    setup = Setup(layout=layout, cost=flat, policy=policy, block=1, limit=101, packing=None)
    requests = [Request(name="d", prompt=1, output=40), Request(name="p", prompt=20_000)]
    run = simulate(requests, setup)
    bound = ItlBound(target=1.0, law=law, ranks=2, in_flight=layout.depth_beside_decodes())
    beside = run.itl()[3:30]
    assert max(beside) <= bound.seconds(step(0, 100, (1,))) * 1.01
    assert min(beside) >= bound.seconds(step(0, 100, ())) * 0.95


class Flat:
    """A law divided evenly over the stages."""

    def __init__(self, law: Law, stages: int) -> None:
        self.law, self.stages = law, stages

    def time(self, stage: int, micro_batch: MicroBatch) -> float:
        return self.law.seconds(micro_batch) / self.stages


@given(law=laws, target=st.floats(0.05, 5), length=st.integers(1, 40_000))
def test_chunks_cover_the_prompt_within_the_target(law: Law, target: float, length: int) -> None:
    bound = ItlBound(target=target, law=law, ranks=2, in_flight=5)
    policy = make_policy({"policy": "fixed", "chunk": 4096}, law=law, ranks=2)
    chunks = bound.chunks(policy, length, limit=1 << 20, block=BLOCK)
    assert sum(chunks) == length
    at = 0
    for tokens in chunks:
        late = bound.seconds(step(at, tokens, (at,))) > target * (1 + 1e-9)
        assert not late or tokens <= BLOCK
        at += tokens


def test_without_a_tight_target_the_chunks_are_the_policys() -> None:
    bound = ItlBound(target=3600, law=LAW, ranks=2, in_flight=5)
    policy = make_policy({"policy": "fixed", "chunk": 4096}, law=LAW, ranks=2)
    assert bound.chunks(policy, 10_000, limit=8192, block=BLOCK) == (4096, 4096, 1808)


def test_what_a_bound_cuts_off_a_planned_chunk_joins_the_next() -> None:
    law = QuadraticCost(c0=0.02, b=2e-4, a=0.0)
    plan = {"policy": "list", "chunks": [1024, 3296, 3296, 3296, 3296, 512]}
    policy = make_policy(plan, law=law, ranks=2)
    bound = ItlBound(target=0.66, law=law, ranks=2, in_flight=2)
    assert bound.most(0, BLOCK, (0,)) == 3184
    chunks = bound.chunks(policy, 14_720, limit=1 << 20, block=BLOCK)
    assert chunks == (1024, 3184, 3184, 3184, 3184, 960)
