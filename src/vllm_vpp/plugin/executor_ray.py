"""The same executor over workers that Ray has placed, on one machine or many.

Owns the combination alone: vLLM's Ray executor (the second one, which talks to its workers over
vLLM's message queues) is a multiprocess executor whose workers are Ray actors. Mirrors
vllm/v1/executor/ray_executor_v2.py. Importing this needs Ray.
"""

from vllm.v1.executor.ray_executor_v2 import RayExecutorV2

from vllm_vpp.plugin.executor import VPPExecutor

__all__ = ["VPPRayExecutor"]


class VPPRayExecutor(VPPExecutor, RayExecutorV2):
    """vLLM's Ray executor with several stages per rank."""
