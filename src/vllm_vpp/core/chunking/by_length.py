"""A policy per length of prompt: what is best for 4K tokens is not for 1M.

Owns the choice among them. The planner writes such a table (`vllm_vpp.auto`); a user may as well.
"""

from dataclasses import dataclass, replace
from math import log

from vllm_vpp.core.chunking.ramp import Ramp
from vllm_vpp.core.chunking.view import Policy, View

__all__ = ["ByLength"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ByLength:
    """`entries`: lengths in tokens, growing, each with its policy.

    A prompt takes the policy whose length is nearest by ratio. The peak of a ramp is scaled
    between two lengths that both have one: by the same power of the length. `busy`, if any, serves
    while other prompts wait: they fill what a ramp would save, so chunks may be large.
    """

    entries: tuple[tuple[int, Policy], ...]
    busy: Policy | None = None

    @property
    def heeds_load(self) -> bool:
        """Whether it looks at what waits."""
        return self.busy is not None

    def size(self, view: View) -> int:
        """Tokens wanted."""
        if self.busy is not None and view.waiting > view.length - view.prefix:
            return self.busy.size(view)
        return self.for_length(view.length).size(view)

    def for_length(self, length: int) -> Policy:
        """The policy of prompts of that many tokens."""
        near = min(self.entries, key=lambda entry: abs(log(entry[0] / length)))
        policy = near[1]
        if not isinstance(policy, Ramp) or near[0] == length:
            return policy
        other = self._other_side(near[0], length)
        if other is None or not isinstance(other[1], Ramp):
            return policy
        power = log(other[1].peak / policy.peak) / log(other[0] / near[0])
        peak = policy.peak * (length / near[0]) ** power
        return replace(policy, peak=max(round(peak), 1))

    def _other_side(self, near: int, length: int) -> tuple[int, Policy] | None:
        """The entry on the other side of `length`, next to it."""
        beyond = [e for e in self.entries if (e[0] > length if near < length else e[0] < length)]
        if not beyond:
            return None
        return min(beyond, key=lambda entry: abs(log(entry[0] / length)))

    def __post_init__(self) -> None:
        lengths = [length for length, _ in self.entries]
        assert lengths == sorted(set(lengths)), lengths
        assert lengths, "no entries"
        assert lengths[0] > 0, lengths
