"""What an engine asks the planner, and what it gets.

Owns the two records that cross the border between their processes.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from vllm_vpp.core.cost import QuadraticCost

__all__ = ["Answer", "Law", "Question"]

_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Law(BaseModel):
    """Whole-model seconds of a chunk (`core.cost.QuadraticCost`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    c0: _Seconds
    b: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    a: _Seconds
    gamma: _Seconds = 0.0

    def cost(self) -> QuadraticCost:
        """The cost law."""
        return QuadraticCost(c0=self.c0, b=self.b, a=self.a, gamma=self.gamma)


class Question(BaseModel):
    """`sweeps`: numbers of sweeps to choose among. `splits`: layers per stage for each of them.

    `families`: chunking families to choose among. `lengths`: prompts expected, in tokens. `limit`:
    most tokens of a micro-batch. `block`: tokens of a KV block. `gap`: seconds that a rank needs
    before each action. `device`: its name, where `law` is in seconds of a device of 1 FLOP/s and is
    yet to be scaled; None where it is in the device's own.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    ranks: Annotated[int, Field(ge=1)]
    sweeps: Annotated[list[int], Field(min_length=1)]
    splits: dict[int, list[int]]
    families: Annotated[list[str], Field(min_length=1)]
    lengths: Annotated[list[int], Field(min_length=1)]
    law: Law
    limit: Annotated[int, Field(ge=1)]
    block: Annotated[int, Field(ge=1)] = 16
    gap: _Seconds = 3e-4
    device: str | None = None


class Answer(BaseModel):
    """`chunking`: what to write as `"chunking"`; None leaves chunks to vLLM's scheduler.

    `gains`: for each length, seconds of the plain pipeline's best over those of the choice.
    `reason`: one line.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    sweeps: int
    chunking: dict[str, Any] | None
    gains: dict[int, float]
    reason: str
