"""One of two processes on machines far apart: sends or receives stage outputs as ranks do.

`python send_far.py RANK ADDRESS`; rank 1 prints `took` and seconds, from `isend` on, of each.
"""

import sys
import time

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state

COUNT = 5
PORT = 29_651


def main(rank: int, address: str) -> None:
    method = f"tcp://{address}:{PORT}"
    parallel_state.init_distributed_environment(2, rank, method, 0, backend="gloo")
    group = parallel_state.get_world_group()
    group.use_cpu_custom_send_recv = False  # as the transport sets it
    names = ("hidden_states", "residual")
    for _ in range(COUNT):
        group.barrier()
        if rank == 0:
            time.sleep(0.5)  # the receiver has posted its receive long before
            sent = {"at": time.time(), **{name: torch.zeros(512, 128) for name in names}}
            handles = group.isend_tensor_dict(sent, dst=1)
            for handle in handles:
                handle.wait()
        else:
            received = group.recv_tensor_dict(src=0)
            assert received is not None
            print("took", time.time() - received["at"], flush=True)
    group.barrier()


if __name__ == "__main__":
    with set_current_vllm_config(VllmConfig()):
        main(int(sys.argv[1]), sys.argv[2])
