"""What a stage has of its own: a share of the KV memory, and inputs that nobody overwrites."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm")
torch = pytest.importorskip("torch")


def specs(layers: int, page: int) -> dict[str, Any]:
    return {str(i): SimpleNamespace(page_size_bytes=page) for i in range(layers)}


@given(
    available=st.integers(10**6, 10**12),
    layers=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    page=st.integers(1, 10**5),
)
def test_all_stages_hold_as_many_blocks(available: int, layers: list[int], page: int) -> None:
    from vllm_vpp.plugin.stage import divide_memory

    shares = divide_memory(available, [specs(n, page) for n in layers])
    assert sum(shares) <= available
    blocks = [share // (n * page) for share, n in zip(shares, layers, strict=True)]
    whole = available // (sum(layers) * page)
    assert set(blocks) <= {whole, whole - 1}
    assert sum(shares) > available - len(layers)


@pytest.mark.parametrize(("device", "guarded"), [("cuda", True), ("cpu", False)])
def test_a_runner_off_the_cpu_waits_for_its_inputs(
    device: str, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm_vpp.plugin.stage import _guard_input_buffers

    monkeypatch.setattr("torch.Event", lambda device, blocking: (device.type, blocking))
    runner = SimpleNamespace(prepare_inputs_event=None)
    _guard_input_buffers(runner, torch.device(device))
    assert runner.prepare_inputs_event == ((device, True) if guarded else None)
    runner.prepare_inputs_event = "vLLM's own"
    _guard_input_buffers(runner, torch.device(device))
    assert runner.prepare_inputs_event == "vLLM's own"
