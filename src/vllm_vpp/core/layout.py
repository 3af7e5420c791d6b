"""Which rank owns which stage.

Owns the map stage -> rank and the notion of a turn. Leaves to others how many model layers a stage
holds (`split`) and in which order a rank runs its stages (`order`).

The V is the layout of the paper (section "The method"): rank r owns stages r and 2P-1-r. A wave
repeats the fold; a linear layout is the ordinary pipeline.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from vllm_vpp.errors import ConfigError

__all__ = ["Layout", "LayoutKind"]


class LayoutKind(StrEnum):
    """The family of a layout; only `WAVE` takes a free number of sweeps."""

    LINEAR = "linear"
    V = "v"
    WAVE = "wave"

    @property
    def fixed_sweeps(self) -> int | None:
        """Number of sweeps that the name implies, or None where the user chooses."""
        return {LayoutKind.LINEAR: 1, LayoutKind.V: 2}.get(self)


@dataclass(frozen=True, slots=True)
class Layout:
    """`sweeps` passes over `ranks` ranks, each odd one in the opposite direction.

    Stages are numbered in execution order, 0 .. stages-1. Raises ConfigError for an impossible
    size.
    """

    ranks: int
    sweeps: int

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise ConfigError(
                f"ranks={self.ranks}: must be at least 1; set the pipeline size to 1 or more"
            )
        if self.sweeps < 1:
            raise ConfigError(f"sweeps={self.sweeps}: must be at least 1 (1 is linear, 2 is the V)")

    @classmethod
    def of(cls, kind: str, ranks: int, sweeps: int | None = None) -> "Layout":
        """The layout that a user names; `sweeps` is given for a wave only."""
        allowed = ", ".join(LayoutKind)
        try:
            family = LayoutKind(kind)
        except ValueError:
            raise ConfigError(
                f"layout={kind!r}: must be one of {allowed}; choose one of them"
            ) from None
        fixed = family.fixed_sweeps
        if fixed is None and sweeps is None:
            raise ConfigError(f'layout={kind!r}: needs the number of sweeps; add "sweeps": 3')
        if fixed is not None and sweeps not in (None, fixed):
            raise ConfigError(
                f"sweeps={sweeps}: layout {kind!r} has {fixed}; leave it out or choose 'wave'"
            )
        chosen = fixed if fixed is not None else sweeps
        assert chosen is not None
        return cls(ranks, chosen)

    @property
    def kind(self) -> LayoutKind:
        """Family by number of sweeps."""
        return {1: LayoutKind.LINEAR, 2: LayoutKind.V}.get(self.sweeps, LayoutKind.WAVE)

    @property
    def name(self) -> str:
        """Short name for tables: linear, v, wave3, ..."""
        return self.kind.value if self.kind is not LayoutKind.WAVE else f"wave{self.sweeps}"

    @property
    def stages(self) -> int:
        """Number of stages."""
        return self.ranks * self.sweeps

    def sweep(self, stage: int) -> int:
        """Sweep that a stage belongs to."""
        return stage // self.ranks

    def owner(self, stage: int) -> int:
        """Rank that runs a stage."""
        sweep, position = divmod(stage, self.ranks)
        return self.ranks - 1 - position if sweep % 2 else position

    @property
    def owners(self) -> tuple[int, ...]:
        """Owner of every stage, in stage order."""
        return tuple(self.owner(stage) for stage in range(self.stages))

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Stages that a rank owns, in execution order."""
        return _stages_of(self, rank)

    def enters_by_turn(self, stage: int) -> bool:
        """Whether the boundary before `stage` is a turn: same rank on both sides, no transfer."""
        return stage > 0 and self.owner(stage) == self.owner(stage - 1)

    def depth(self) -> int:
        """Micro-batches in flight that keep every rank busy: one per stage and one (theory 5)."""
        return self.stages + 1

    def depth_beside_decodes(self) -> int:
        """Micro-batches in flight while requests decode beside prompts: those of a plain pipeline.

        The next token of a request waits for all that are in flight (`core.itl`), so a deeper
        pipeline would starve decodes; chunks of equal time keep all ranks busy with P of them.
        """
        return self.ranks + 1


@cache
def _stages_of(layout: Layout, rank: int) -> tuple[int, ...]:
    """Asked for every decision of an order that waits, hence remembered."""
    return tuple(stage for stage in range(layout.stages) if layout.owner(stage) == rank)
