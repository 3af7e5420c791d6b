"""The logger of the plugin: a child of vLLM's, so that its lines appear among vLLM's own."""

from vllm.logger import init_logger

__all__ = ["logger"]

logger = init_logger("vllm.vpp")
