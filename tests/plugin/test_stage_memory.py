"""A rank's KV memory is shared among its stages so that none runs out before the others."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm")


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
