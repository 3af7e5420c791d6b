"""KV connectors: one per stage, as an ordinary pipeline has one per rank.

Owns which connector vLLM's global names while a stage runs, and the way of what the connectors of
all stages report to vLLM's scheduler. Which connectors may run is `support`'s. Mirrors
vllm/distributed/kv_transfer/kv_transfer_state.py and kv_connector/utils.py (KVOutputAggregator).

One connector for a process that owns several stages would be given the KV caches of each in turn
(`register_kv_caches`) and keep those of the last, and would count a request as sent when one stage
has sent it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator

from vllm_vpp.plugin.message import Reply

__all__ = ["StageConnector", "StageOutputs"]


class StageConnector:
    """The connector of one stage: vLLM's worker makes it when it gets its KV caches, if at all."""

    def __init__(self) -> None:
        self._agent: Any = None

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make it the process's connector, for one call."""
        saved = kv_transfer_state._KV_CONNECTOR_AGENT
        kv_transfer_state._KV_CONNECTOR_AGENT = self._agent
        try:
            yield
        finally:
            self._agent = kv_transfer_state._KV_CONNECTOR_AGENT
            kv_transfer_state._KV_CONNECTOR_AGENT = saved

    def shutdown(self) -> None:
        """End it as vLLM's worker does; does nothing where there is none."""
        with self.current():
            kv_transfer_state.ensure_kv_transfer_shutdown()


class StageOutputs(KVOutputAggregator):
    """Merges what connectors report, one output per stage, into the output of the last stage.

    A request counts as sent or received when every stage of every rank has said so.
    """

    def aggregate(self, outputs: list[Any], output_rank: int = 0) -> Any:
        """`outputs[r]` is rank r's reply, with an output per stage for one micro-batch."""
        each = [output for reply in outputs for output in reply.output]
        last = sum(len(reply.output) for reply in outputs[: output_rank + 1]) - 1
        return Reply(super().aggregate(each, output_rank=last), outputs[output_rank].took)
