"""The command line that serves what was planned.

Owns the spelling of vLLM's options and of the `vpp` part of its additional config.
"""

import json
import shlex
from typing import Any

from vllm_vpp.core.cost import QuadraticCost
from vllm_vpp.core.layout import Layout

__all__ = ["serve_line"]


def serve_line(
    model: str,
    layout: Layout,
    spec: dict[str, Any],
    *,
    ways: int,
    largest: int,
    law: QuadraticCost,
    split: tuple[int, ...],
    itl_target_ms: float | None = None,
) -> str:
    """A `vllm serve` command to paste; a plain vLLM one where no pipeline is needed."""
    words = ["vllm", "serve", model, "--tensor-parallel-size", str(ways)]
    words += ["--max-num-batched-tokens", str(largest)]
    if layout.ranks > 1:
        words += ["--pipeline-parallel-size", str(layout.ranks)]
        vpp: dict[str, Any] = {"layout": layout.kind.value}
        if layout.sweeps > 2:
            vpp["sweeps"] = layout.sweeps
        vpp["split"] = list(split)
        vpp["cost"] = _rounded(law)
        if spec["policy"] != "fixed":
            vpp["chunking"] = spec
        if itl_target_ms is not None:
            vpp["itl_target_ms"] = itl_target_ms
        words += ["--additional-config", json.dumps({"vpp": vpp})]
    return shlex.join(words)


def _rounded(law: QuadraticCost) -> dict[str, float]:
    return {name: float(f"{getattr(law, name):.6g}") for name in ("c0", "b", "a")}
