"""Chunks by load: fewer prompt tokens per step when few wait or when the KV cache fills up.

Source: gLLM's token throttling. Formula in docs/theory.md.
"""

from dataclasses import dataclass

from vllm_vpp.core.chunking.view import View

__all__ = ["TokenThrottle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenThrottle:
    """x = min(max(waiting // iterations, minimum), (free - reserve) / (1 - reserve) maximum).

    `iterations`: steps over which the waiting prompt tokens are spread. `reserve`: share of the KV
    cache kept for decoding. `decodes`: most decode steps in a micro-batch; within it those that are
    ready are spread evenly over the ranks. Defaults are gLLM's but for `reserve`, which it leaves
    to the deployment.
    """

    ranks: int
    maximum: int = 8192
    minimum: int = 32
    iterations: int = 8
    reserve: float = 0.05
    decodes: int = 512

    @property
    def heeds_load(self) -> bool:
        """Whether it looks at what waits."""
        return True

    def size(self, view: View) -> int:
        """Tokens wanted."""
        usable = max(view.free_fraction - self.reserve, 0.0) / (1 - self.reserve)
        waiting = max(view.waiting, view.length - view.prefix)
        wanted = min(max(waiting // self.iterations, self.minimum), round(usable * self.maximum))
        return max(wanted, 1)

    def decode_budget(self, decodes: int, step: int) -> int:
        """Decode steps for micro-batch `step` of the `decodes` running: the remainder rotates."""
        each, rest = divmod(decodes, self.ranks)
        return min(self.decodes, max(each + (step % self.ranks < rest), 1))
