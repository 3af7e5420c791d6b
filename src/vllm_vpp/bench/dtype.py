"""The number format that this processor multiplies fast: bfloat16 where it has instructions for it.

Without them (AVX2 alone) bfloat16 is emulated at about a tenth of float32's speed, so that a
measurement would show the emulation and take hours.
"""

import time
from functools import cache
from typing import Any

__all__ = ["fast_dtype"]

_SLOWER = 2.0  # by which bfloat16 has to be slower to be left; it is ten times, or not at all


@cache
def fast_dtype() -> str:
    """`bfloat16`, or `float32` where a short multiplication shows that it is far faster."""
    import torch

    narrow, wide = (_seconds(torch, dtype) for dtype in (torch.bfloat16, torch.float32))
    return "float32" if narrow > _SLOWER * wide else "bfloat16"


def _seconds(torch: Any, dtype: Any) -> float:
    """The best of three multiplications."""
    rows, weights = (torch.ones(512, 512, dtype=dtype) for _ in range(2))
    found = []
    for _ in range(3):
        began = time.perf_counter()
        torch.nn.functional.linear(rows, weights)
        found.append(time.perf_counter() - began)
    return min(found)
