"""Faults that a test injects into running workers, to show that its comparison would notice.

Also what a test wants to know of them.

A worker extension (`worker_extension_cls`): vLLM makes it a base of the worker class, so that its
methods can be called by `collective_rpc`. Each fault is undone by `restore`.
"""

from collections.abc import Callable
from typing import Any

import torch


class Faults:
    """`stages` and `transport` are those of `vllm_vpp.plugin.worker.StageHost`."""

    stages: dict[int, Any]
    transport: Any
    _undo: list[Callable[[], None]]

    def _remember(self, undo: Callable[[], None]) -> None:
        if not hasattr(self, "_undo"):
            self._undo = []
        self._undo.append(undo)

    def held_sends(self) -> int:
        """Transfers whose tensors this rank still holds."""
        groups = {id(group): group for group in self.transport._groups}
        return sum(len(getattr(g, "_pending_isends", ())) for g in groups.values())

    def shortest_wait_s(self) -> float:
        """Seconds after which a receive of a stage's input fails, over all groups."""
        cpu = torch.device("cpu")
        backends = [group.cpu_group._get_backend(cpu) for group in self.transport._groups]
        return float(min(backend.options._timeout.total_seconds() for backend in backends))

    def restore(self) -> None:
        """Undo every fault."""
        while getattr(self, "_undo", None):
            self._undo.pop()()

    def swap_layers(self, stage: int) -> bool:
        """Exchange the first two layers of a stage; returns whether this rank owns it."""
        if stage not in self.stages:
            return False
        model = self.stages[stage].worker.model_runner.model.model
        a, b = model.start_layer, model.start_layer + 1
        assert b < model.end_layer, "the stage has one layer only"

        def swap() -> None:
            model.layers[a], model.layers[b] = model.layers[b], model.layers[a]

        swap()
        self._remember(swap)
        return True

    def drop_residual(self, stage: int) -> bool:
        """Lose the residual on its way into `stage`."""

        def change(send: Callable[..., Any], tensors: dict[str, Any], *rest: Any) -> Any:
            lost = {**tensors, "residual": torch.zeros_like(tensors["residual"])}
            return send(stage, lost, *rest)

        return self._change_sends(stage, change)

    def overwrite_after_send(self, stage: int) -> bool:
        """Reuse the memory of what was sent into `stage`, as soon as it was sent."""

        def change(send: Callable[..., Any], tensors: dict[str, Any], *rest: Any) -> Any:
            handles = send(stage, tensors, *rest)
            for tensor in tensors.values():
                tensor.zero_()
            return handles

        return self._change_sends(stage, change)

    def _change_sends(self, stage: int, change: Callable[..., Any]) -> bool:
        if stage - 1 not in self.stages:
            return False
        send = self.transport.send

        def changed(to: int, tensors: dict[str, Any], *rest: Any) -> Any:
            return change(send, tensors, *rest) if to == stage else send(to, tensors, *rest)

        self.transport.send = changed
        self._remember(lambda: self.transport.__dict__.pop("send", None))
        return True

    def stale_positions(self, stage: int) -> bool:
        """Give a stage the positions of the micro-batch before, where sizes allow."""
        if stage not in self.stages:
            return False
        model = self.stages[stage].worker.model_runner.model
        forward = model.forward
        kept: dict[int, torch.Tensor] = {}

        def changed(*, positions: torch.Tensor, **named: Any) -> Any:
            old = kept.get(len(positions), positions)
            kept[len(positions)] = positions.clone()
            return forward(positions=old, **named)

        model.forward = changed
        self._remember(lambda: model.__dict__.pop("forward", None))
        return True
