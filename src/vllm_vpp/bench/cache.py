"""Folders that are built once and then only read.

A folder appears complete or not at all, also when two processes build it at once.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/vllm-vpp`, or `~/.cache/vllm-vpp`. It may not exist yet."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "vllm-vpp"


def build_once(target: Path, build: Callable[[Path], None]) -> Path:
    """Returns `target`; if it did not exist, `build` fills a new folder that takes its name."""
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        build(unfinished)
        unfinished.chmod(0o755)
        unfinished.rename(target)
    except OSError:
        if not target.is_dir():  # else another process was faster, and built the same
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return target
