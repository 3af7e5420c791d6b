"""How outputs are handed on: copied where they would be overwritten, each sweep on its own way."""

import threading
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


class _Group:
    """Stands in for vLLM's pipeline group: notes where it was asked to send."""

    def __init__(self) -> None:
        self.use_cpu_custom_send_recv = True
        self.rank_in_group, self.group_ranks = 0, [[0, 1]]
        self.device, self.device_group = SimpleNamespace(type="cpu"), None
        self.device_communicator = None
        self.sent: list[int | None] = []

    def isend_tensor_dict(self, tensors: Any, dst: int | None = None, **options: Any) -> list[Any]:
        self.sent.append(dst)
        return []


def built(groups: list[_Group], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A transport of two ranks and a sweep per group, for rank 0."""
    from vllm_vpp.plugin import transport

    made = iter(groups[1:])
    state = SimpleNamespace(
        get_pp_group=lambda: groups[0],
        get_tp_group=lambda: None,
        get_world_group=lambda: SimpleNamespace(local_rank=0),
        init_model_parallel_group=lambda *args, **options: next(made),
    )
    monkeypatch.setattr(transport, "parallel_state", state)
    monkeypatch.setattr("torch.distributed.get_backend", lambda group: "gloo")
    return transport.Transport(Layout(2, len(groups)), copies=False)


def test_each_sweep_has_a_communicator_that_never_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one for all sweeps, or vLLM's synchronous path on a CPU, two ranks that send hang."""
    groups = [_Group() for _ in range(3)]
    transport = built(groups, monkeypatch)
    assert [group.use_cpu_custom_send_recv for group in groups] == [False] * 3
    for stage in (1, 3, 5):
        transport.send(stage, {}, {})
    assert [group.sent for group in groups] == [[1], [0], [1]]
    transport.send(4, {"x": 1}, {})  # the turn to stage 4 is on this rank
    assert transport.links[4].take().tensors == {"x": 1}


class _Dead(_Group):
    """A group whose other rank is gone: to receive is an error, to send never ends."""

    def irecv_tensor_dict(self, src: int | None = None, **options: Any) -> Any:
        raise RuntimeError("connection closed by peer")

    def isend_tensor_dict(self, tensors: Any, dst: int | None = None, **options: Any) -> list[Any]:
        threading.Event().wait()
        raise AssertionError


def test_a_rank_whose_peer_is_dead_does_not_wait_to_tell_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends = threading.Event()
    transport = built([_Dead(), _Dead()], monkeypatch)
    transport._peer_ends = ends.set
    transport.start()
    assert ends.wait(60)
    with pytest.raises(RuntimeError, match="receiving from the rank before failed"):
        transport.links[3].take()
    assert not transport.stop(timeout=0.2)  # the worker then ends without its libraries
