"""The GPU worker with stages."""

from vllm.v1.worker.gpu_worker import Worker

from vllm_vpp.plugin.worker import StageHost

__all__ = ["VPPGPUWorker"]


class VPPGPUWorker(StageHost, Worker):
    """Hosts stages on vLLM's GPU worker."""

    base = Worker
