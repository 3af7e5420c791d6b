"""Chunks that are cut shorter than their policy wants: what is left of one joins the next.

Owns the remedy for plans, which fix where chunks end: where steps take less, what is left of each
chunk would be a chunk of its own, however small, and small chunks are dear.
"""

from dataclasses import dataclass

from vllm_vpp.core.chunking.view import Policy, View, heeds_load

__all__ = ["Carried", "carried"]


@dataclass(frozen=True, slots=True)
class Carried:
    """`policy`, but within one of its chunks the next one is wanted as well."""

    policy: Policy

    def size(self, view: View) -> int:
        """Tokens wanted."""
        wanted = self.policy.size(view)
        end = view.prefix + wanted
        if end >= view.length or not self._is_within(view, wanted):
            return wanted
        return wanted + self.policy.size(view._replace(prefix=end))

    def _is_within(self, view: View, wanted: int) -> bool:
        """Whether a block less of the prompt would make the chunk a block longer."""
        before = view.prefix - view.block
        if before < view.start:
            return False
        return self.policy.size(view._replace(prefix=before)) == wanted + view.block


def carried(policy: Policy | None) -> Policy | None:
    """The policy for steps that may take less than it wants; one that heeds the load plans none."""
    return policy if policy is None or heeds_load(policy) else Carried(policy)
