"""Which group an operator or a kernel belongs to, by its name.

Owns the patterns. They are tried in the order of the groups, and the first that is found anywhere
in the name, in any case, wins: a kernel that communicates inside an MoE layer is communication.
"""

import re
from enum import StrEnum

__all__ = ["OperatorGroup", "group_of"]


class OperatorGroup(StrEnum):
    """Groups as the paper's breakdown of compute has them, and what else a layer spends time on."""

    COMMUNICATION = "communication"
    MOE = "MoE"
    ATTENTION = "attention"
    NORM = "norm"
    MATMUL = "matmul"
    COPY = "copy/slice"
    OTHER = "other"


_PATTERNS = {
    OperatorGroup.COMMUNICATION: (
        r"nccl|rccl|hccl|gloo|c10d::|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"
        r"|cross_device_reduce|(?<![a-z])i?(send|recv)(?![a-z])"
    ),
    OperatorGroup.MOE: r"moe|expert|topk_?gating|grouped_?topk",
    OperatorGroup.ATTENTION: (
        r"attention|attn|flash|fmha|mla_|paged|reshape_and_cache|concat_and_cache"
    ),
    OperatorGroup.NORM: r"(rms|layer|group|batch)_?norm|_norm(?![a-z])",
    OperatorGroup.MATMUL: (
        r"gemm|gemv|matmul|(?<![a-z])(add|b|scaled_|_scaled_|int_)?mm(?![a-z])|linear|cutlass"
        r"|cublas|nvjet|xmma|marlin|einsum"
    ),
    OperatorGroup.COPY: (
        r"memcpy|memset|copy|clone|contiguous|slice|narrow|(?<![a-z])cat(?![a-z])|catarray|concat"
        r"|index|gather|scatter|select|fill|split|chunk|transpose|permute|pad"
    ),
}
_COMPILED = {group: re.compile(text, re.IGNORECASE) for group, text in _PATTERNS.items()}


def group_of(name: str) -> OperatorGroup:
    """The group of an operator (`aten::linear`) or of a device kernel."""
    for group, pattern in _COMPILED.items():
        if pattern.search(name):
            return group
    return OperatorGroup.OTHER
