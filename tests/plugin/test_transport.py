"""How outputs are handed on: copied where they would be overwritten, each sweep on its own way."""

import queue
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
    """Stands in for vLLM's pipeline group: notes over what, and to whom, it was asked to send."""

    def __init__(self, communicator: str = "pipeline") -> None:
        self.use_cpu_custom_send_recv = True
        self.rank_in_group, self.group_ranks = 0, [[0, 1]]
        self.device = SimpleNamespace(type="cpu")
        self.cpu_group = self.device_group = communicator
        self.device_communicator = None
        self._pending_isends: list[Any] = []
        self.sent: list[tuple[str, int | None]] = []

    def isend_tensor_dict(self, tensors: Any, dst: int | None = None, **options: Any) -> list[Any]:
        assert not self.use_cpu_custom_send_recv, "that path waits for the receiver"
        self.sent.append((self.cpu_group, dst))
        return []


def built(group: Any, monkeypatch: pytest.MonkeyPatch, sweeps: int = 2) -> Any:
    """A transport of two ranks for the one whose pipeline group is given."""
    from vllm_vpp.plugin import transport

    made = iter([_Group("new")])
    state = SimpleNamespace(
        get_pp_group=lambda: group,
        get_tp_group=lambda: None,
        get_world_group=lambda: SimpleNamespace(
            local_rank=0, cpu_group="world", device_group="world"
        ),
        init_model_parallel_group=lambda *args, **options: next(made),
    )
    monkeypatch.setattr(transport, "parallel_state", state)
    monkeypatch.setattr("torch.distributed.get_backend", lambda group: "gloo")
    return transport.Transport(Layout(2, sweeps), copies=False)


def test_each_sweep_has_a_communicator_that_never_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one for all sweeps, or vLLM's synchronous path on a CPU, two ranks that send hang."""
    transport = built(_Group(), monkeypatch, sweeps=3)
    for stage in (1, 3, 5):
        transport.send(stage, {}, {})
    assert transport.physical.sent == [("pipeline", 1), ("world", 0)]
    assert transport._groups[2].sent == [("new", 1)]
    assert transport._groups[1]._pending_isends is not transport.physical._pending_isends
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
    transport = built(_Dead(), monkeypatch)
    transport._peer_ends = ends.set
    transport.start()
    assert ends.wait(60)
    with pytest.raises(RuntimeError, match="receiving from the rank before failed"):
        transport.links[3].take()
    assert not transport.stop(timeout=0.2)  # the worker then ends without its libraries


class _Send:
    """A send to a rank that has died: to wait for it fails once, and then never ends."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def wait(self) -> None:
        self.log.append(self.name)
        raise RuntimeError("connection closed by peer")


def test_what_could_not_be_sent_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is anything sent after it, which would make vLLM's group wait for it."""
    log: list[str] = []
    transport = built(_Group(), monkeypatch)
    ends = threading.Event()
    transport._peer_ends = ends.set
    transport.physical.isend_tensor_dict = lambda *args, **options: [
        _Send(log, "metadata"),
        _Send(log, "tensor"),
    ]
    threading.Thread(target=transport._wait_for_sent, daemon=True).start()
    transport.send(1, {}, {})
    assert ends.wait(60)
    assert log == ["metadata"]
    with pytest.raises(RuntimeError, match="sending to the rank after failed"):
        transport.send(1, {}, {})


def test_the_stream_that_reads_an_input_is_told_to_its_allocator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm_vpp.plugin.transport import Arrival

    told: list[Any] = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *args: told.append(args))
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: f"of {device}")
    here, there = torch.zeros(1), torch.zeros(1, device="meta")
    Arrival({"here": here, "there": there, "n": 1}, [], [], None, None).waited()
    ((tensor, stream),) = told
    assert tensor is there
    assert stream == "of meta"


class _Wired(_Group):
    """One end of a plain pipeline of two ranks."""

    def __init__(self, rank: int, channels: list[Any]) -> None:
        super().__init__()
        self.rank_in_group, self.channels = rank, channels

    def irecv_tensor_dict(self, src: int | None = None, **options: Any) -> Any:
        return self.channels[self.rank_in_group].get(timeout=60), [], []

    def isend_tensor_dict(self, tensors: Any, dst: int | None = None, **options: Any) -> list[Any]:
        assert dst is not None
        self.channels[dst].put(tensors)
        return []


def test_the_first_rank_of_a_plain_pipeline_learns_that_the_last_has_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channels: list[Any] = [queue.SimpleQueue(), queue.SimpleQueue()]
    ends = [threading.Event(), threading.Event()]
    ranks = []
    for rank in (0, 1):
        transport = built(_Wired(rank, channels), monkeypatch, sweeps=1)
        transport._peer_ends = ends[rank].set
        transport.start()
        ranks.append(transport)
    assert not ends[0].wait(0.2)
    last = threading.Thread(target=ranks[1].stop, args=(60,))
    last.start()
    assert ends[0].wait(60)
    assert ranks[0].stop(timeout=60)
    last.join(60)
    assert not last.is_alive()
    assert not ends[1].is_set(), "it stopped by itself"
