"""Skips what this machine cannot run."""

from importlib.util import find_spec
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    no_vllm = pytest.mark.skip(reason="vLLM is not installed")
    no_gpu = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if item.get_closest_marker("vllm") and find_spec("vllm") is None:
            item.add_marker(no_vllm)
        if item.get_closest_marker("gpu") and not Path("/dev/nvidiactl").exists():
            item.add_marker(no_gpu)
