"""What the scheduler reads of vLLM's queues."""

from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.vllm


def test_a_request_that_waits_for_data_does_not_lead() -> None:
    from vllm.v1.request import RequestStatus

    from vllm_vpp.plugin.scheduler import in_turn

    grammar = SimpleNamespace(status=RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR)
    remote = SimpleNamespace(status=RequestStatus.WAITING_FOR_REMOTE_KVS)
    first, second = (SimpleNamespace(status=RequestStatus.WAITING) for _ in range(2))
    assert list(in_turn([grammar, first, remote, second])) == [first, second, grammar, remote]
    assert list(in_turn([remote])) == [remote], "nothing else may ever start"


def test_a_step_is_sized_for_the_prompt_that_vllm_will_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.v1.request import RequestStatus

    from vllm_vpp.core.chunking import View
    from vllm_vpp.core.chunking.equal import Fixed
    from vllm_vpp.plugin.scheduler import VPPScheduler

    made = object.__new__(VPPScheduler)
    crowd = SimpleNamespace(full=False)
    made._pace = SimpleNamespace(  # type: ignore[assignment]
        version=0, policy=Fixed(chunk=512), packing=None, itl_bound=None, crowd=crowd
    )
    made.scheduler_config = SimpleNamespace(
        max_num_batched_tokens=8192, long_prefill_token_threshold=0
    )
    made._version, made._step, made.running = 0, 0, []
    remote = SimpleNamespace(status=RequestStatus.WAITING_FOR_REMOTE_KVS, request_id="remote")
    plain = SimpleNamespace(status=RequestStatus.WAITING, request_id="plain")
    made.waiting = [remote, plain]
    monkeypatch.setattr(made, "_view", lambda request: View(0, 4096, 16))
    first = made._limits().first
    assert first is not None
    assert first.request == "plain"
