"""Outputs that the next micro-batch would overwrite are copied before they are handed on."""

from types import SimpleNamespace
from typing import Any

import pytest

from vllm_vpp.core.layout import Layout

pytestmark = pytest.mark.vllm
torch = pytest.importorskip("torch")


class _Recorder:
    """Stands in for a transport: keeps what a stage sends."""

    def __init__(self, *, copies: bool) -> None:
        self.layout, self.copies = Layout(2, 2), copies
        self.sent: dict[str, Any] = {}

    def send(self, stage: int, tensors: dict[str, Any], options: dict[str, Any]) -> list[Any]:
        self.sent = tensors
        return [None]


def sent(copies: bool, residual: Any, buffer: Any) -> Any:
    from vllm_vpp.plugin.transport import StageGroup

    transport: Any = _Recorder(copies=copies)
    group = StageGroup(transport, 1)
    group.runner = SimpleNamespace(intermediate_tensors=SimpleNamespace(tensors={"r": buffer}))
    group.isend_tensor_dict({"residual": residual})
    return transport.sent["residual"]


def test_an_output_in_the_input_buffer_survives_the_next_micro_batch() -> None:
    buffer = torch.zeros(8, 4)
    handed = sent(False, buffer[:3], buffer)
    buffer.fill_(7.0)
    assert not handed.any()


def test_an_output_of_its_own_is_not_copied() -> None:
    residual = torch.ones(3, 4)
    assert sent(False, residual, torch.zeros(8, 4)) is residual


def test_outputs_of_graphs_are_copied() -> None:
    residual = torch.ones(3, 4)
    assert sent(True, residual, torch.zeros(8, 4)) is not residual
