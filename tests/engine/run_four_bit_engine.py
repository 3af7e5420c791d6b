"""`run_engine`, on processors for which vLLM's CPU build has no product with 4-bit weights.

Stands in for that one operator, in stock vLLM and in this package's engines alike: the loading and
repacking of the weights, which stages could spoil, stay vLLM's.
"""

import torch
from run_engine import main
from vllm import _custom_ops as ops

LANES = 16  # outputs that lie side by side, see vLLM's CPUWNA16LinearKernel
NIBBLES = torch.arange(0, 32, 4)


def unpacked(words: torch.Tensor) -> torch.Tensor:
    """Shape (..., n) of 32 bits into (..., 8 n) of 4 bits."""
    return ((words.unsqueeze(-1) >> NIBBLES) & 15).flatten(-2)


def cpu_gemm_wna16(
    *,
    input: torch.Tensor,  # noqa: A002  # vLLM's name
    q_weight: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    bias: torch.Tensor | None,
    pack_factor: int,
    isa_hint: str,
) -> torch.Tensor:
    """Shapes: input (tokens, k), q_weight (n/16, 2k), scales (groups, n), zeros (groups, n/8)."""
    assert pack_factor == 8, isa_hint
    size = input.shape[-1]
    levels = unpacked(q_weight).view(-1, size, LANES).permute(1, 0, 2).reshape(size, -1)
    rows = size // len(scales)
    level = levels - unpacked(zeros).repeat_interleave(rows, 0)
    weight = level.float() * scales.float().repeat_interleave(rows, 0)
    found = input.float() @ weight
    return (found if bias is None else found + bias).to(input.dtype)


ops.cpu_gemm_wna16 = cpu_gemm_wna16


if __name__ == "__main__":
    main()
