"""The CPU worker with stages."""

from vllm.v1.worker.cpu_worker import CPUWorker

from vllm_vpp.plugin.worker import StageHost

__all__ = ["VPPCPUWorker"]


class VPPCPUWorker(StageHost, CPUWorker):
    """Hosts stages on vLLM's CPU worker."""

    base = CPUWorker
