"""LoRA adapters on stages: every stage is asked, and rows without an adapter are left alone."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.vllm
torch = pytest.importorskip("torch")

VOCABULARY, WIDTH, RANK = 11, 6, 2
TOKENS = (0, 1, 1, 2, 0, 2)  # adapter of each row, 0: none
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}


def wrapper(cls: Any, rows: tuple[int, ...] = TOKENS) -> Any:
    """One that has been told the adapters of a step; adapter 1 is in slot 0, 2 in slot 1."""
    from vllm.lora.layers import LoRAMapping

    made = cls(max_num_batched_tokens=16, max_batches=8, device="cpu")
    made.update_metadata(LoRAMapping(rows, rows, is_prefill=True), [1, 2], 3, VOCABULARY)
    return made


def matrices(inputs: int, outs: int) -> tuple[Any, Any]:
    draw = torch.Generator().manual_seed(1)
    first = torch.randn(2, 1, RANK, inputs, generator=draw)
    return first, torch.randn(2, 1, outs, RANK, generator=draw)


def by_hand(rows: tuple[int, ...], x: Any, first: Any, second: Any) -> Any:
    """What each row gains from its own adapter."""
    gain = torch.zeros(len(rows), second.shape[2])
    for i, adapter in enumerate(rows):
        if adapter:
            gain[i] = second[adapter - 1, 0] @ (first[adapter - 1, 0] @ x[i])
    return gain


def gained(cls: Any, rows: tuple[int, ...] = TOKENS) -> tuple[Any, Any]:
    """What a linear layer's output gains, and what it should."""
    x, (first, second) = torch.randn(len(rows), WIDTH), matrices(WIDTH, WIDTH)
    y = torch.zeros(len(rows), WIDTH)
    wrapper(cls, rows).add_lora_linear(y, x, (first,), (second,), 1.0, (WIDTH,))
    return y, by_hand(rows, x, first, second)


def test_vllms_own_kernels_give_the_last_adapter_to_rows_without_one() -> None:
    """Once this fails, `SparingWrapper` has no purpose any more."""
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    y, expected = gained(PunicaWrapperCPU)
    torch.testing.assert_close(y[1:4], expected[1:4], **TOLERANCE)
    assert y[0].abs().max() > 0.01
    assert expected[0].abs().max() == 0


@pytest.mark.parametrize("rows", [TOKENS, (0, 0, 0), (2, 2), (1, 0)])
def test_a_row_gains_what_its_own_adapter_gives(rows: tuple[int, ...]) -> None:
    from vllm_vpp.plugin.adapters import SparingWrapper

    torch.testing.assert_close(*gained(SparingWrapper, rows), **TOLERANCE)


@pytest.mark.parametrize("rows", [TOKENS, (0, 0, 0), (2, 2)])
def test_logits_of_a_row_without_an_adapter_stay(rows: tuple[int, ...]) -> None:
    from vllm_vpp.plugin.adapters import SparingWrapper

    x, (first, second) = torch.randn(len(rows), WIDTH), matrices(WIDTH, VOCABULARY)
    y = before = torch.randn(len(rows), VOCABULARY)
    y = y.clone()
    wrapper(SparingWrapper, rows).add_lora_logits(y, x, first, second, 1.0)
    torch.testing.assert_close(y, before + by_hand(rows, x, first, second), **TOLERANCE)


def test_embeddings_of_a_row_without_an_adapter_stay() -> None:
    from vllm_vpp.plugin.adapters import SparingWrapper

    _, second = matrices(1, WIDTH)
    looked_up = torch.randn(len(TOKENS), RANK)
    y = torch.zeros(len(TOKENS), WIDTH)
    wrapper(SparingWrapper).add_lora_embedding(y, looked_up, second, add_input=True)
    for row, adapter in enumerate(TOKENS):
        expected = second[adapter - 1, 0] @ looked_up[row] if adapter else torch.zeros(WIDTH)
        torch.testing.assert_close(y[row], expected, **TOLERANCE)


class Worker:
    """Stands for a stage's worker: keeps the adapters that it was given."""

    def __init__(self) -> None:
        self.known: set[int] = set()

    def add_lora(self, request: Any) -> bool:
        self.known.add(request.lora_int_id)
        return True

    def remove_lora(self, lora_id: int) -> bool:
        had = lora_id in self.known
        self.known.discard(lora_id)
        return had

    def list_loras(self) -> set[int]:
        return set(self.known)

    def pin_lora(self, lora_id: int) -> bool:
        return lora_id in self.known


def test_every_stage_is_asked() -> None:
    from vllm_vpp.plugin.adapters import AdapterHost

    workers = [Worker(), Worker()]
    host = AdapterHost()
    stages: Any = {s: SimpleNamespace(worker=w, active=nullcontext) for s, w in enumerate(workers)}
    host.stages = stages
    assert host.add_lora(SimpleNamespace(lora_int_id=7))
    assert [worker.known for worker in workers] == [{7}, {7}]
    assert host.pin_lora(7)
    workers[1].known.add(8)
    assert host.list_loras() == {7}, "an adapter that one stage lacks cannot be used"
    assert not host.remove_lora(8)
    assert host.remove_lora(7)
    assert [worker.known for worker in workers] == [set(), set()]
