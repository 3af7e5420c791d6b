"""The cost law learned while serving, kept for the next start.

Owns one small JSON file per model, device and number of ranks, beside vLLM's compile cache. A file
that cannot be read or written is reported once and otherwise ignored.
"""

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vllm import envs
from vllm.config import VllmConfig

from vllm_vpp.core.cost import QuadraticCost
from vllm_vpp.plugin.log import logger

__all__ = ["LawFile"]

_VERSION = 1


class LawFile:
    """Where the law of one model on one device, over that many ranks, is kept."""

    def __init__(self, config: VllmConfig) -> None:
        from vllm.platforms import current_platform

        parallel = config.parallel_config
        self._key: dict[str, Any] = {
            "version": _VERSION,
            "model": config.model_config.compute_hash(),
            "dtype": str(config.model_config.dtype),
            "device": current_platform.get_device_name(),
            "ranks": parallel.pipeline_parallel_size,
            "tensor_parallel": parallel.tensor_parallel_size,
        }
        digest = hashlib.sha256(json.dumps(self._key, sort_keys=True).encode()).hexdigest()[:16]
        self.path = Path(envs.VLLM_CACHE_ROOT) / "vpp" / f"{digest}.json"

    def load(self) -> QuadraticCost | None:
        """The law in seconds, or None."""
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            if data["key"] != self._key:
                return None
            law = QuadraticCost(**{n: float(data["law"][n]) for n in ("c0", "b", "a", "gamma")})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            logger.warning("vpp: %s is ignored: %r", self.path, error)
            return None
        values = law.c0, law.a, law.gamma
        good = all(map(math.isfinite, (*values, law.b))) and law.b > 0 and min(values) >= 0
        if not good:
            logger.warning("vpp: %s is ignored: %s", self.path, law)
        return law if good else None

    def save(self, law: QuadraticCost, notes: Mapping[str, Any]) -> None:
        """Replace the file."""
        text = json.dumps({"key": self._key, "law": asdict(law), **notes}, indent=1) + "\n"
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, draft = tempfile.mkstemp(dir=self.path.parent, suffix=".draft")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(draft).replace(self.path)
        except OSError as error:
            logger.warning("vpp: the cost law is not kept for the next start: %s", error)
