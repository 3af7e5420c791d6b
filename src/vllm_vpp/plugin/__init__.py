"""The vLLM plugin: the only place that imports vLLM. vLLM loads it; nothing else here does.

`register` is the `vllm.general_plugins` entry point. It is re-entrant, and a config without a `vpp`
part takes the same path through vLLM as if this package were absent.
"""

__all__ = ["register"]


def register() -> None:
    """Install the few hooks listed in docs/vllm.md; vLLM calls this in each of its processes."""
    from vllm_vpp.plugin.hooks import install

    install()
