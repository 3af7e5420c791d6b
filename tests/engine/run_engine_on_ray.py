"""`run_engine` on a Ray cluster of this machine.

vLLM's CPU platform has no name among Ray's devices, so a resource of our own stands in for one:
in the driver, and by Ray's set-up hook in every worker.
"""

from typing import Any

import ray
import run_engine

SLOT = "vpp_slot"


def stand_in() -> None:
    """Let vLLM take our resource for the device of its platform."""
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.executor.ray_executor_v2 import RayWorkerProc

    def node_and_devices(self: Any) -> tuple[str, list[int]]:
        return ray.get_runtime_context().get_node_id(), [0]

    CpuPlatform.ray_device_key = SLOT
    RayWorkerProc.get_node_and_physical_gpu_ids = node_and_devices


if __name__ == "__main__":
    ray.init(
        num_cpus=2,
        resources={SLOT: 4},
        include_dashboard=False,
        runtime_env={"worker_process_setup_hook": "run_engine_on_ray.stand_in"},
    )
    stand_in()
    run_engine.main()
    ray.shutdown()
