"""Limits of a scheduler step: from a chunking policy to what vLLM's scheduler knows."""

from hypothesis import given
from hypothesis import strategies as st

from vllm_vpp.core.batch import Chunk
from vllm_vpp.core.chunking import Policy, View, make_policy, next_chunk
from vllm_vpp.core.cost import QuadraticCost
from vllm_vpp.plugin.chunks import Limits, Prompt, step_limits

LAW = QuadraticCost(c0=0.3, b=3e-4, a=2e-7)


def fixed(chunk: int) -> Policy:
    return make_policy({"policy": "fixed", "chunk": chunk}, law=LAW, ranks=2)


def prompt(length: int, prefix: int = 0, start: int = 0) -> Prompt:
    return Prompt("r", View(prefix, length, 1, start))


def test_a_long_prompt_rides_alone() -> None:
    policy = make_policy({"policy": "ramp", "peak": 2048}, law=LAW, ranks=2)
    limits = step_limits(policy, [prompt(16_000), prompt(500)], decodes=3, maximum=4096)
    chunk = next_chunk(policy, View(0, 16_000, 4093))
    assert limits == Limits(chunk + 3, chunk, None, (Chunk("r", 0, chunk),))


def test_short_prompts_share_a_step() -> None:
    limits = step_limits(fixed(2048), [prompt(900), prompt(900), prompt(900)], 0, 8192)
    assert limits.step == 1800


def test_a_prompt_under_way_does_not_join() -> None:
    limits = step_limits(fixed(2048), [prompt(100), prompt(4000, 3900)], 0, 8192)
    assert limits.step == 100


def test_the_last_chunk_of_a_long_prompt_rides_alone() -> None:
    limits = step_limits(fixed(2048), [prompt(2500, 2048), prompt(500)], 0, 8192)
    assert limits.step == 452


def test_a_threshold_for_long_prompts_lets_others_share_the_step() -> None:
    policy = make_policy({"policy": "ramp", "peak": 2048}, law=LAW, ranks=2)
    limits = step_limits(policy, [prompt(16_000), prompt(500)], decodes=3, maximum=4096)
    assert limits.shared(4096, 256)[:2] == (4096, 256)
    assert limits.shared(4096, 100_000)[:2] == (4096, limits.request)


def test_a_bound_holds_for_each_request_and_never_raises_a_limit() -> None:
    assert Limits(600, None).each(512).request == 512
    assert Limits(600, 256).each(512).request == 256
    assert Limits(600, 256).each(None) == Limits(600, 256)


def test_without_prompts_vllm_decides() -> None:
    assert step_limits(fixed(2048), [], decodes=5, maximum=8192) == Limits(8192, None)


@given(
    name=st.sampled_from(["fixed", "ramp", "equal-time", "dp"]),
    lengths=st.lists(st.integers(1, 40_000), min_size=1, max_size=5),
    decodes=st.integers(0, 64),
    maximum=st.integers(128, 8192),
)
def test_limits_leave_room_for_progress(
    name: str, lengths: list[int], decodes: int, maximum: int
) -> None:
    key = "peak" if name == "ramp" else "chunk"
    spec = {"policy": name} if name == "dp" else {"policy": name, key: 1024}
    policy = make_policy(spec, law=LAW, ranks=2)
    limits = step_limits(policy, map(prompt, lengths), decodes, maximum)
    assert decodes < limits.step <= maximum
    assert limits.request is not None
    assert 1 <= limits.request <= limits.step
