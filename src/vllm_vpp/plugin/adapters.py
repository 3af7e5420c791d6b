"""LoRA adapters on a rank that hosts several stages.

Owns what vLLM asks of a worker about adapters: each stage has a model of its own and so an adapter
manager of its own, which keeps the adapter's part for its layers. Mirrors vllm/lora/.

Also keeps vLLM's kernels for CPUs from giving an adapter to requests that have none. They mark such
rows by the index -1 and then index the adapters with it, which is the last one: the answer of a
request without an adapter would depend on what else is in its step.
"""

from collections.abc import Mapping
from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

from vllm_vpp.plugin.stage import Stage

__all__ = ["AdapterHost", "SparingWrapper", "spare_other_rows"]


class AdapterHost:
    """Mixin of a worker: asks every stage what vLLM asks of the worker."""

    stages: Mapping[int, Stage]

    def add_lora(self, lora_request: Any) -> bool:
        """Load an adapter into every stage."""
        return all(self._of_stages("add_lora", lora_request))

    def remove_lora(self, lora_id: int) -> bool:
        """Remove an adapter from every stage; False if it was not there."""
        return all(self._of_stages("remove_lora", lora_id))

    def pin_lora(self, lora_id: int) -> bool:
        """Keep an adapter in every stage."""
        return all(self._of_stages("pin_lora", lora_id))

    def list_loras(self) -> set[int]:
        """Adapters that every stage has."""
        return set.intersection(*self._of_stages("list_loras"))

    def _of_stages(self, method: str, *args: Any) -> list[Any]:
        answers = []
        for stage in self.stages.values():
            with stage.active():
                answers.append(getattr(stage.worker, method)(*args))
        return answers


class SparingWrapper(PunicaWrapperCPU):
    """Leaves rows without an adapter as the model computed them."""

    def add_shrink(self, y: Any, *inputs: Any, **options: Any) -> None:
        """Products with the first matrix of each part; zero where there is no adapter."""
        super().add_shrink(y, *inputs, **options)
        none = self.token_lora_indices < 0
        for product in y:
            product[none] = 0

    def add_lora_embedding(self, y: Any, x: torch.Tensor, *inputs: Any, **options: Any) -> None:
        """As vLLM's; `x` is a product with the first matrix already."""
        some = (self.token_lora_indices >= 0).unsqueeze(1)
        super().add_lora_embedding(y, x * some, *inputs, **options)

    def add_lora_logits(self, y: torch.Tensor, *inputs: Any, **options: Any) -> None:
        """As vLLM's, with the rows of no adapter put back."""
        none = self.sampler_indices < 0
        if none.all():
            return
        kept = y[none] if none.any() else None
        super().add_lora_logits(y, *inputs, **options)
        if kept is not None:
            y[none] = kept


def spare_other_rows(runner: Any) -> None:
    """Correct the adapter manager of a model runner, if it has one that runs on a CPU."""
    manager = getattr(runner, "lora_manager", None)
    if manager is None:
        return
    for wrapper in manager._adapter_manager.punica_wrapper_mapping.values():
        if type(wrapper) is PunicaWrapperCPU:
            wrapper.__class__ = SparingWrapper
