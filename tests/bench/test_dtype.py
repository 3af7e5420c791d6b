"""The number format that suites use follows what the processor is fast at."""

from typing import Any

import pytest

from vllm_vpp.bench import dtype


@pytest.mark.parametrize(
    ("narrow", "wide", "chosen"),
    [(1.0, 2.0, "bfloat16"), (1.5, 1.0, "bfloat16"), (10.0, 1.0, "float32")],
)
def test_bfloat16_is_left_only_where_it_is_emulated(
    narrow: float, wide: float, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seconds(torch: Any, kind: Any) -> float:
        return narrow if kind == torch.bfloat16 else wide

    monkeypatch.setattr(dtype, "_seconds", seconds)
    dtype.fast_dtype.cache_clear()
    try:
        assert dtype.fast_dtype() == chosen
    finally:
        dtype.fast_dtype.cache_clear()


def test_a_multiplication_is_timed() -> None:
    torch = pytest.importorskip("torch")
    assert dtype._seconds(torch, torch.float32) > 0
