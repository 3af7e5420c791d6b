"""State of vLLM that is not part of any documented interface and that the plugin reads or sets.

Owns the list; docs/vllm.md prints it beside what the code imports, subclasses and wraps.
"""

from typing import NamedTuple

__all__ = ["BORDERS", "Border"]


class Border(NamedTuple):
    """A symbol, what is done with it, and why no documented way would do."""

    symbol: str
    use: str
    why: str


BORDERS = (
    Border(
        "vllm.distributed.parallel_state._PP",
        "swapped for the stage's group during one call",
        "models and runners ask get_pp_group() which layers they own and where to send",
    ),
    Border(
        "vllm.distributed.kv_transfer.kv_transfer_state._KV_CONNECTOR_AGENT",
        "swapped for the stage's connector during one call",
        "a connector belongs to a process, and a process has several stages",
    ),
    Border(
        "GroupCoordinator.use_cpu_custom_send_recv",
        "set to False for the groups that stages send over",
        "that path is synchronous beyond its buffer: two ranks that send to each other hang",
    ),
    Border(
        "GroupCoordinator.cpu_group, device_group, _pending_isends",
        "in a copy of the pipeline group: those of the world group, and sends of its own",
        "a second sweep needs a communicator of its own, and a new one would open sockets",
    ),
    Border(
        "Worker._pp_send_work",
        "emptied before each call",
        "waiting for the previous send before computing deadlocks a V; the group keeps sends alive",
    ),
    Border(
        "GPUModelRunner.intermediate_tensors",
        "allocated after loading where it is None",
        "only the compile warm-up allocates it, and eager mode on the CPU has none",
    ),
    Border(
        "GPUModelRunner.prepare_inputs_event",
        "made, off the CPU, where it is None",
        "vLLM guards a step's input buffers for asynchronous scheduling only, and stages need it",
    ),
    Border(
        "LoRAModelManager.punica_wrapper_mapping",
        "on a CPU, its wrappers are made `adapters.SparingWrapper`",
        "vLLM's kernels give the last adapter to requests without one that share its step",
    ),
    Border(
        "WorkerLoRAManager._adapter_manager",
        "read",
        "the only way to the wrappers of a model runner",
    ),
    Border(
        "CompilationConfig.static_forward_context, static_all_moe_layers",
        "a fresh one per stage",
        "KV specs are read from it, and each stage has its own layers",
    ),
    Border(
        "Scheduler.running, max_num_running_reqs, max_num_scheduled_tokens",
        "read, and the last one set for one call of schedule",
        "vLLM has no hook for how many tokens a step may take",
    ),
    Border(
        "Scheduler._is_blocked_waiting_status",
        "called",
        "which waiting requests vLLM will skip, so that a step is sized for one that it takes",
    ),
    Border(
        "Request.next_decode_eligible_step",
        "set for one call of schedule, for requests that are to sit it out",
        "vLLM has no hook for which decode steps a step may take",
    ),
    Border(
        "Request.num_output_placeholders, is_prefill_chunk",
        "read",
        "how many tokens of a request are on their way, and whether its prompt has ended",
    ),
    Border(
        "GPUModelRunner.requests",
        "output tokens of a request that starts anew are cut to those the scheduler has kept",
        "vLLM's runner does so on the last stage only",
    ),
    Border(
        "Scheduler.use_pp",
        "set to True",
        "with one rank, stage 0 still learns of sampled tokens from the scheduler",
    ),
    Border(
        "MultiprocExecutor.rpc_broadcast_mq",
        "actions without a result are put on it; replaced by a `queues.Outbox` around it",
        "collective_rpc always asks some rank to reply; vLLM waits for room without a limit",
    ),
    Border(
        "MultiprocExecutor.response_mqs",
        "those from other machines are replaced by a `queues.Inbox` around each",
        "vLLM waits for a reply from there although a rank has died here",
    ),
)
