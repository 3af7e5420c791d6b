"""What suites plan can be run: settings are legal, prompts fit, requests have their times."""

from pathlib import Path

import pytest

from vllm_vpp.bench import compare, mixed, overhead, predicted, tau
from vllm_vpp.bench.engine import Arm, Request
from vllm_vpp.bench.suites import SUITES
from vllm_vpp.plugin.settings import Settings

NEED_NO_WEIGHTS = (
    *("mixed", "fairness", "tau", "arms", "recording", "operators", "ablation", "short", "bubble"),
    *("lengths", "long"),
)


@pytest.fixture(autouse=True)
def _no_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("arms", "tau"):
        monkeypatch.setattr(
            f"vllm_vpp.bench.{module}.checkpoint", lambda spec: Path(str(spec.max_positions))
        )


@pytest.mark.parametrize("name", NEED_NO_WEIGHTS)
def test_every_arm_can_start_and_every_prompt_fits(name: str) -> None:
    arms, cases = SUITES[name].plan()
    assert len({arm.name for arm in arms}) == len(arms)
    for arm in arms:
        if arm.vpp is not None:
            Settings.parse(arm.vpp)
        if Path(arm.model).name.isdigit():
            assert arm.max_model_len <= int(Path(arm.model).name), "vLLM refuses more"
        for request in (r for case in cases.values() for r in case):
            assert len(request.prompt) + request.max_tokens <= arm.max_model_len


def test_real_requests_arrive_over_time_and_clients_of_the_paper_wait() -> None:
    _, cases = mixed.mixed()
    assert {r.among for r in cases[mixed.PAPER]} == {16}
    times = [r.at for r in cases[mixed.CONVERSATION]]
    assert times == sorted(times)
    assert (times[0], times[-1]) == (0.0, 12.0)


def test_stock_vllm_is_an_arm_without_the_switch() -> None:
    (stock,) = (arm for arm in predicted.arms()[0] if arm.name == predicted.STOCK)
    assert "additional_config" not in stock.arguments(None, None)


def test_only_one_arm_of_the_overhead_suite_records() -> None:
    arms, _ = overhead.recording()
    assert [arm.name for arm in arms if arm.has_trace] == [overhead.TRACE]
    hosts = {compare._host(arm, arms).name for arm in arms}
    assert hosts == {overhead.TRACE}, "one engine, which can record"
    assert len({str(arm.watch) for arm in arms}) == 3


def test_a_profiled_arm_asks_for_vllms_profiler() -> None:
    arm = Arm(name="x", model="m", ranks=2, chunk=8, max_model_len=8, profile=True)
    found = arm.arguments(None, Path("profiles"))["profiler_config"]
    assert found["profiler"] == "torch"
    assert Path(found["torch_profiler_dir"]).is_absolute()


def test_chunk_times_are_those_of_equal_chunks() -> None:
    arms, cases = tau.tau()
    (request,) = cases[""]
    assert isinstance(request, Request)
    assert all(len(request.prompt) % arm.chunk == 0 for arm in arms)
    assert len(request.prompt) // arms[0].chunk == 16
