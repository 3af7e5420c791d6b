"""How the output of one stage becomes the input of the next.

Owns the pipeline group that a stage sees, in which it is rank s of all stages, and the threads that
keep a receive posted on every incoming channel, so that a transfer runs while its receiver
computes. Mirrors `GroupCoordinator` (vllm/distributed/parallel_state.py) as far as model runners
use it.

One communicator per sweep: with one for all, "send forward, then receive back" on one rank and its
mirror image on the next would wait for each other. Within a sweep a pair of ranks has one channel
in one direction, and both ends see micro-batches in order.
"""

import copy
import glob
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from vllm.distributed import parallel_state
from vllm.distributed.parallel_state import GroupCoordinator

from vllm_vpp.core.layout import Layout

__all__ = ["Arrival", "Link", "StageGroup", "Transport"]


_STOP = "vpp_stop"
_PARENT_CHECK_S = 2.0


class Arrival(NamedTuple):
    """Input of a stage. Times are monotonic nanoseconds; None where nothing was transferred.

    `handles` and `finish` are what vLLM's receive returned, still to be waited for and called.
    """

    tensors: dict[str, Any]
    handles: list[Any]
    finish: list[Callable[[], None]]
    posted_ns: int | None
    done_ns: int | None

    def waited(self) -> "Arrival":
        """The same once the device waits for the tensors; on a CPU they are there already.

        Their memory belongs to the stream of the thread that received them: the stream that reads
        them has to be told, or it would be used again too early.
        """
        for handle in self.handles:
            handle.wait()
        for tensor in self.tensors.values():
            if isinstance(tensor, torch.Tensor) and not tensor.is_cpu:
                tensor.record_stream(torch.accelerator.current_stream(tensor.device))
        return self._replace(handles=[])


class _Failed(NamedTuple):
    error: BaseException


class Link:
    """Inputs of one stage, in the order of micro-batches; blocks until the next one is there."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._arrivals: queue.SimpleQueue[Arrival | _Failed] = queue.SimpleQueue()

    def put(self, arrival: Arrival | _Failed) -> None:
        """Append."""
        self._arrivals.put(arrival)

    def take(self) -> Arrival:
        """Remove and return the oldest; raises what the receiving thread raised.

        Ends the process when its engine has died: nobody is left to tell a rank that waits.
        """
        while True:
            try:
                arrival = self._arrivals.get(timeout=_PARENT_CHECK_S)
                break
            except queue.Empty:
                if os.getppid() != self._parent:
                    raise SystemExit(1) from None
        if isinstance(arrival, _Failed):
            raise RuntimeError("vpp: receiving from the rank before failed") from arrival.error
        return arrival


class StageGroup:
    """The pipeline group that the models and the runner of one stage see.

    `is_first_rank` and `is_last_rank` are those of the stage; whatever else is asked goes to the
    real group of the process.
    """

    def __init__(self, transport: "Transport", stage: int) -> None:
        self._transport = transport
        self.rank_in_group = stage
        self.world_size = transport.layout.stages
        self.ranks = list(range(self.world_size))
        self.arrival: Arrival | None = None
        self.sent_ns: int | None = None
        self.on_send: Callable[[int], None] | None = None
        self.sent_bytes: int | None = None
        self.runner: Any = None

    @property
    def is_first_rank(self) -> bool:
        """Whether the stage embeds tokens."""
        return self.rank_in_group == 0

    @property
    def is_last_rank(self) -> bool:
        """Whether the stage computes logits and samples."""
        return self.rank_in_group == self.world_size - 1

    @property
    def first_rank(self) -> int:
        """Stage 0."""
        return 0

    @property
    def last_rank(self) -> int:
        """The last stage."""
        return self.world_size - 1

    def isend_tensor_dict(
        self, tensor_dict: dict[str, Any], dst: int | None = None, **options: Any
    ) -> list[Any]:
        """Hand the output to the next stage without waiting."""
        assert dst is None, "a stage sends to the next one only"
        self.sent_ns = time.monotonic_ns()
        if self.on_send is not None:
            self.on_send(self.sent_ns)
        self.sent_bytes = sum(t.nbytes for t in tensor_dict.values() if isinstance(t, torch.Tensor))
        outputs = {k: self._owned(value) for k, value in tensor_dict.items()}
        return self._transport.send(self.rank_in_group + 1, outputs, options)

    def _owned(self, value: Any) -> Any:
        """The value, copied if the next micro-batch would overwrite it.

        Graphs write their outputs into buffers of their own; without graphs, operations in place
        may hand the runner's input buffer through to the output.
        """
        if not isinstance(value, torch.Tensor):
            return value
        buffers = getattr(self.runner, "intermediate_tensors", None)
        inputs = buffers.tensors.values() if buffers is not None else ()
        if self._transport.copies or any(_share_memory(value, buffer) for buffer in inputs):
            return value.clone()
        return value

    def irecv_tensor_dict(
        self, src: int | None = None, **options: Any
    ) -> tuple[dict[str, Any], list[Any], list[Callable[[], None]]]:
        """The input that the stage has taken from its link."""
        assert src is None, "a stage receives from the one before only"
        arrival, self.arrival = self.arrival, None
        assert arrival is not None, f"stage {self.rank_in_group} has taken no input"
        return arrival.tensors, arrival.handles, arrival.finish

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport.physical, name)


def _share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _unlink_shared_memory(group: GroupCoordinator) -> None:
    """Forget the names of the segments of vLLM's own shared-memory transfers on a CPU.

    All ranks have mapped them by now. vLLM unlinks them when a process ends in good order only, so
    a killed engine would leave 4 MiB per rank behind for good.
    """
    distributed = getattr(group.device_communicator, "dist_module", None)
    name = getattr(distributed, "group_name", None)
    if name is not None:
        for segment in Path("/dev/shm").glob(f"{glob.escape(name)}_*"):
            segment.unlink(missing_ok=True)


def _over(group: GroupCoordinator, larger: GroupCoordinator) -> GroupCoordinator:
    """The same ranks, with sends and receives of their own over the communicator of `larger`."""
    own = copy.copy(group)
    own.cpu_group, own.device_group = larger.cpu_group, larger.device_group
    own._pending_isends = deque()
    return own


class Transport:
    """Links and groups of one process, for all stages that it owns.

    `copies`: outputs live in buffers that the next micro-batch overwrites (graphs), so they are
    copied before they are sent. `peer_ends` is called, in a receiving thread, when a rank that this
    one receives from or sends to has stopped or died first.
    """

    def __init__(
        self, layout: Layout, *, copies: bool, peer_ends: Callable[[], None] | None = None
    ) -> None:
        self.layout = layout
        self.physical: GroupCoordinator = parallel_state.get_pp_group()
        self.rank = self.physical.rank_in_group
        self._on_host = self.physical.device.type == "cpu"
        self.copies = copies
        self._peer_ends = peer_ends
        self._stopping = False
        self._lost: RuntimeError | None = None  # why something could not be sent
        self._groups = self._make_groups()
        self._options: dict[str, Any] = {"all_gather_group": parallel_state.get_tp_group()}
        self._receivers: list[threading.Thread] = []
        self._sent: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
        self.links = {stage: Link() for stage in layout.stages_of(self.rank) if stage}
        self.groups = {stage: StageGroup(self, stage) for stage in layout.stages_of(self.rank)}

    def _make_groups(self) -> list[GroupCoordinator]:
        """One communicator per sweep; a collective call, made by all processes alike.

        The second sweep has that of the world, which vLLM uses at start-up only: a V opens no
        sockets of its own. Further sweeps have new ones.
        """
        groups = [self.physical]
        if self.layout.ranks == 1:
            return groups * self.layout.sweeps
        world = parallel_state.get_world_group()
        backend = torch.distributed.get_backend(self.physical.device_group)
        groups += [_over(self.physical, world)] * (self.layout.sweeps > 1)
        groups += [
            parallel_state.init_model_parallel_group(
                self.physical.group_ranks, world.local_rank, backend, group_name=f"vpp{sweep}"
            )
            for sweep in range(2, self.layout.sweeps)
        ]
        for group in groups:
            group.use_cpu_custom_send_recv = (
                False  # synchronous beyond its buffer: two ranks that send would hang
            )
        _unlink_shared_memory(self.physical)
        return groups

    def start(self) -> None:
        """Start one receiving thread per stage whose input comes from another rank.

        On a CPU also one that waits for what is sent; where `peer_ends` is to be called, also one
        per rank that this one only sends to.
        """
        if self._on_host:
            threading.Thread(target=self._wait_for_sent, name="vpp-sent", daemon=True).start()
        for stage in self._incoming():
            self._start_receiver(self._receive, stage, self.links[stage])
        if self._peer_ends is not None:
            for rank in self._after() - self._before():
                self._start_receiver(self._watch, rank)

    def _start_receiver(self, target: Callable[..., None], number: int, *rest: Any) -> None:
        name = f"vpp{target.__name__.replace('_', '-')}-{number}"
        thread = threading.Thread(target=target, args=(number, *rest), name=name, daemon=True)
        thread.start()
        self._receivers.append(thread)

    def _outgoing(self) -> list[int]:
        """Stages on other ranks that this one sends to."""
        after = [stage + 1 for stage in self.groups if stage + 1 < self.layout.stages]
        return [stage for stage in after if not self.layout.enters_by_turn(stage)]

    def _incoming(self) -> list[int]:
        """Stages of this rank whose input comes from another one."""
        return [stage for stage in self.links if not self.layout.enters_by_turn(stage)]

    def _after(self) -> set[int]:
        """Ranks that this one sends to."""
        return {self.layout.owner(stage) for stage in self._outgoing()}

    def _before(self) -> set[int]:
        """Ranks that this one receives from."""
        return {self.layout.owner(stage - 1) for stage in self._incoming()}

    def stop(self, timeout: float = 3.0) -> bool:
        """Tell those who receive from this rank that nothing more comes, and end such threads here.

        Returns whether all of them ended; they do once the others have stopped or died. A send to a
        rank that has died may never end.
        """
        self._stopping = True
        if not self._receivers:
            return True
        farewell = threading.Thread(target=self._say_farewell, name="vpp-farewell", daemon=True)
        farewell.start()
        threads = [farewell, *self._receivers]
        deadline = time.monotonic() + timeout
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _say_farewell(self) -> None:
        listening = [
            (self._groups[self.layout.sweep(stage)], self.layout.owner(stage))
            for stage in self._outgoing()
        ]
        if self._peer_ends is not None:
            listening += [(self.physical, rank) for rank in self._before() - self._after()]
        for group, rank in listening:
            with suppress(RuntimeError):  # the peer is gone already
                group.isend_tensor_dict({_STOP: True}, dst=rank)

    def _receive(self, stage: int, link: Link) -> None:
        group = self._groups[self.layout.sweep(stage)]
        source = self.layout.owner(stage - 1)
        if not self._on_host:
            torch.accelerator.set_device_index(self.physical.device)
        try:
            while True:
                posted = time.monotonic_ns()
                tensors, handles, finish = group.irecv_tensor_dict(src=source, **self._options)
                assert tensors is not None
                if _STOP in tensors:
                    break
                if self._on_host:  # elsewhere the compute stream waits, in the thread that computes
                    for handle in handles:
                        handle.wait()
                    handles = []
                link.put(Arrival(tensors, handles, finish, posted, time.monotonic_ns()))
        except BaseException as error:  # noqa: BLE001 - handed to the computing thread, which raises it
            link.put(_Failed(error))
        self._tell_that_a_peer_ended()

    def _watch(self, rank: int) -> None:
        """Wait for the end of a rank that sends nothing here but its farewell."""
        with suppress(RuntimeError):
            self.physical.irecv_tensor_dict(src=rank)
        self._tell_that_a_peer_ended()

    def _tell_that_a_peer_ended(self) -> None:
        if self._peer_ends is not None and not self._stopping:
            self._peer_ends()

    def _wait_for_sent(self) -> None:
        """Gloo calls a send complete only when somebody has waited for it.

        Until then vLLM's group keeps its tensors, which would be all that was ever sent. The handle
        of the metadata comes first: once tensors are complete, the group waits for it as well. So
        when it fails, since the peer is gone, tensors stay incomplete: the group would wait for the
        metadata again, for ever.
        """
        while True:
            try:
                for handle in self._sent.get():
                    handle.wait()
            except RuntimeError as error:
                self._lost = error
                self._tell_that_a_peer_ended()

    def send(self, stage: int, tensors: dict[str, Any], options: dict[str, Any]) -> list[Any]:
        """Output of `stage` - 1; the group keeps handles and tensors alive until it is sent."""
        if self.layout.enters_by_turn(stage):
            self.links[stage].put(Arrival(tensors, [], [], None, None))
            return [None]
        if self._lost is not None:
            raise RuntimeError("vpp: sending to the rank after failed") from self._lost
        group = self._groups[self.layout.sweep(stage)]
        handles = group.isend_tensor_dict(tensors, dst=self.layout.owner(stage), **options)
        if self._on_host:
            self._sent.put(handles)
        return [None]
