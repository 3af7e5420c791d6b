"""A KV connector for tests: vLLM's example one, for prompts of several chunks.

vLLM's own stores what the first step of a prompt computes. This one stores in the step that
completes the prompt, and keeps a finished request's blocks until every worker connector has said
that it is sent, as connectors that transfer in the background do.
"""

from collections import deque
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import (
    ExampleConnector,
    ExampleConnectorMetadata,
)
from vllm.distributed.parallel_state import get_pp_group


class ChunkedConnector(ExampleConnector):  # type: ignore[misc]  # vLLM is Any to mypy
    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._prompts: dict[str, tuple[list[int], list[int]]] = {}  # tokens and blocks, to store
        late = get_pp_group().rank_in_group if role is KVConnectorRole.WORKER else 0
        self._to_send: deque[set[str]] = deque(set() for _ in range(1 + late))

    def build_connector_meta(self, scheduler_output: Any) -> ExampleConnectorMetadata:
        loading = set(self._requests_need_load)
        meta = super().build_connector_meta(scheduler_output)
        assert isinstance(meta, ExampleConnectorMetadata)
        meta.requests = [request for request in meta.requests if not request.is_store]
        prefixes = self._follow(scheduler_output, loading)
        for name, (tokens, blocks) in list(self._prompts.items()):
            scheduled = scheduler_output.num_scheduled_tokens.get(name, 0)
            if name in prefixes and prefixes[name] + scheduled >= len(tokens):
                meta.add_request(tokens, blocks, self._block_size, True, [])
                del self._prompts[name]
        return meta

    def _follow(self, scheduler_output: Any, loading: set[str]) -> dict[str, int]:
        """Note new prompts and new blocks; returns the prefix of every request of the step."""
        prefixes = {}
        for new in scheduler_output.scheduled_new_reqs:
            prefixes[new.req_id] = new.num_computed_tokens
            if new.req_id not in loading:
                self._prompts[new.req_id] = list(new.prompt_token_ids), list(new.block_ids[0])
        cached = scheduler_output.scheduled_cached_reqs
        prefixes |= zip(cached.req_ids, cached.num_computed_tokens, strict=True)
        for name, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if name in self._prompts and blocks is not None:
                self._prompts[name][1].extend(blocks[0])
        return prefixes

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        del request, block_ids
        return True, None

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, None]:
        """Stage s says that it has sent a request 1 + s steps after it was asked to."""
        self._to_send.append(set(finished_req_ids))
        return self._to_send.popleft() or None, None
