"""What the scheduler and the executor of one engine share: how large chunks are at the moment.

Owns the chunking policy in force, the cost law behind it, learned from how long micro-batches took,
and when a new law or a new plan replaces the old one. Never waits and never fails: without a law
that can be trusted, chunks are vLLM's own, and one line says so.
"""

from collections.abc import Collection, Iterable
from typing import Any, ClassVar

from vllm.config import VllmConfig

from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.core.chunking import Policy, plans_with_law
from vllm_vpp.core.cost import Law, QuadraticCost
from vllm_vpp.core.crowd import Crowd
from vllm_vpp.core.dispatch import Dispatcher
from vllm_vpp.core.itl import ItlBound
from vllm_vpp.core.online import OnlineCost
from vllm_vpp.core.packing import Packing
from vllm_vpp.plugin import engine_config, startup
from vllm_vpp.plugin.law_file import LawFile
from vllm_vpp.plugin.log import logger
from vllm_vpp.plugin.message import Took
from vllm_vpp.plugin.planner import Planning, PlanningError
from vllm_vpp.plugin.settings import make

__all__ = ["Pace"]

_EVERY = 16  # observations between two fits
_SOON = 5  # the same for a hybrid that has left its threshold
_MISFIT = 0.05  # relative error of a law's shape that calls for another
_BETTER = 0.5  # a new law must at least halve it
_GIVE_UP = 64  # observations without a possible fit


class Pace:
    """One per engine; `of` finds it from the config that scheduler and executor both hold.

    `policy`: None leaves chunks to vLLM. `version` grows whenever another policy is in force.
    `ending`: requests whose prompt ends in the step just scheduled. `misfit`: of the law, when last
    looked at.
    """

    _of: ClassVar[dict[str, "Pace"]] = {}

    def __init__(self, config: VllmConfig) -> None:
        self.settings = engine_config.settings_of(config)
        self.layout = engine_config.layout_of(config)
        self.packing: Packing | None = None
        self.ending: Collection[str] = ()
        self.version = 0
        self.observed = OnlineCost()
        self._config = config
        cost = engine_config.cost_of(config)
        assert self.settings.resolved is not None
        self.law: Law = cost.model
        self._guessed = not (self.settings.cost or self.settings.resolved.law)
        chunks = config.scheduler_config.enable_chunked_prefill
        self._chunking = self.settings.resolved.chunking if chunks else None
        self.policy = self._policy()
        last = self.layout.owner(self.layout.stages - 1)
        self._stages = self.layout.stages_of(last)
        self._share = sum(cost.shares[stage] for stage in self._stages)
        self.misfit = 0.0
        self.crowd = Crowd(self.settings.depth_beside_decodes(self.layout))
        self._coming: dict[int, tuple[Chunk, ...]] = {}
        self._seconds: dict[int, tuple[int, float]] = {}
        self._fitted_at = 0
        self._fell_back = False
        self._scale = None if self._guessed else 1.0  # seconds of the law to measured ones
        self._scaled_at = 0
        self._planning: Planning | None = None
        self._file = LawFile(config) if self.settings.learns else None

    @classmethod
    def start(cls, config: VllmConfig) -> "Pace":
        """The pace of an engine that starts now; the executor asks first."""
        cls._of[config.instance_id] = cls(config)
        return cls._of[config.instance_id]

    @classmethod
    def of(cls, config: VllmConfig) -> "Pace":
        """The pace of the engine with this config."""
        return cls._of[config.instance_id]

    def use(self, dispatcher: Dispatcher) -> None:
        """Take the dispatcher whose virtual clock says what may be packed."""
        if self.layout.sweeps > 1 or not self.settings.packing:
            self.packing = Packing(dispatcher, enabled=self.settings.packing)

    def submitted(self, micro_batch: MicroBatch) -> None:
        """Note a micro-batch just submitted to the dispatcher."""
        if micro_batch.chunks:
            self._coming[micro_batch.index] = micro_batch.chunks
        self.crowd.submitted(micro_batch)
        if self.packing is not None:
            self.packing.submitted(micro_batch, self.ending)

    def finished(self, index: int, took: Iterable[Took]) -> None:
        """Note a result, and what came with it."""
        self.crowd.finished(index)
        if self.packing is not None:
            self.packing.finished(index)
        for action in took:
            self._add(action)
        for done in [i for i in self._coming if i <= index - 64]:  # a device that never told
            del self._coming[done]
            self._seconds.pop(done, None)
        if self._file is not None:
            self._learn()

    def _add(self, action: Took) -> None:
        """Add an action's time; a micro-batch is observed once all stages of the rank are there."""
        count, seconds = self._seconds.pop(action.micro_batch, (0, 0.0))
        count, seconds = count + 1, seconds + action.lasted_ns * 1e-9
        if count < len(self._stages):
            self._seconds[action.micro_batch] = count, seconds
            return
        chunks = self._coming.pop(action.micro_batch, ())
        self.observed.add(MicroBatch(action.micro_batch, chunks), seconds / self._share)

    def _learn(self) -> None:
        """Replace the law if its shape no longer fits and another one does much better."""
        if self._planning is not None and self._planning.done:
            self._take_answer()
        since = self.observed.added - self._fitted_at
        if since < (_SOON if self._hybrid else _EVERY):
            return
        self.misfit = before = self.observed.misfit(self.law)
        threshold = self._threshold
        if since < _EVERY and before <= threshold:
            return
        self._fitted_at = self.observed.added
        if before <= threshold and not (self._fell_back or self._guessed):
            return
        law = self._fit()
        if law is None:
            self._fall_back()
            return
        better = self.observed.misfit(law) <= before * _BETTER
        if better or self._fell_back or self._guessed:
            self._adopt(law)

    @property
    def _hybrid(self) -> bool:
        return (self.settings.chunking or {}).get("policy") == "hybrid"

    @property
    def _threshold(self) -> float:
        return float((self.settings.chunking or {}).get("threshold", _MISFIT))

    def _fit(self) -> Law | None:
        if self._hybrid:
            return self.observed.marginal()
        return self._quadratic()

    def _quadratic(self) -> QuadraticCost | None:
        return self.observed.quadratic(self.law, self._config.model_config.max_model_len)

    def _adopt(self, law: Law) -> None:
        self.law, self._fell_back, self._guessed = law, False, False
        self._scale, self._scaled_at = 1.0, -_SOON
        quadratic = law if isinstance(law, QuadraticCost) else self._quadratic()
        if quadratic is not None:
            assert self._file is not None
            self._file.save(quadratic, {"observations": self.observed.added})
            self._plan(quadratic)
        self._change(self._chunking)

    def _plan(self, law: QuadraticCost) -> None:
        """Ask the planner for other sizes, if it found those in force."""
        assert self.settings.resolved is not None
        if not self.settings.resolved.planned or self._planning is not None:
            return
        try:
            self._planning = Planning(self._question(law))
        except OSError as error:
            logger.warning("vpp: chunks are not planned anew: %s", error)

    @property
    def itl_bound(self) -> ItlBound | None:
        """What a step keeps to while requests decode; None where nobody asked.

        None also before the first times are known on a machine that is new to us.
        """
        target = self.settings.itl_target_ms
        if target is None:
            return None
        if self.settings.learns and self.observed.added >= self._scaled_at + _SOON:
            self._scaled_at = self.observed.added
            self._scale = self.observed.scale(self.law) or self._scale
        if self._scale is None:
            return None
        return ItlBound(
            target=target / 1000,
            law=self.law,
            ranks=self.layout.ranks,
            in_flight=self.crowd.most,
            scale=self._scale,
        )

    def close(self) -> None:
        """Forget everything; the engine ends."""
        if self._planning is not None:
            self._planning.cancel()
        self._of.pop(self._config.instance_id, None)

    def _question(self, law: QuadraticCost) -> dict[str, Any]:
        """What to plan anew: the chunking, for the layout in use."""
        asked = startup.question(self._config, self.settings, law)
        return asked | {"sweeps": [self.layout.sweeps]}

    def _take_answer(self) -> None:
        assert self._planning is not None
        planning, self._planning = self._planning, None
        try:
            answer = planning.answer()
        except PlanningError as error:
            logger.warning("vpp: chunks are not planned anew: %s", error)
            return
        self._change(startup.spelled(answer["chunking"], self.settings.chunking))

    def _change(self, chunking: dict[str, Any] | None) -> None:
        self._chunking = chunking
        self.policy = self._policy()
        self.version += 1

    def _policy(self) -> Policy | None:
        return make(self._chunking, self.law, self.layout)

    def _fall_back(self) -> None:
        """Leave chunks to vLLM until a fit succeeds, and say so once."""
        enough = self.observed.added >= _GIVE_UP
        if self._fell_back or not enough or not plans_with_law(self._chunking):
            return
        self._fell_back = True
        self.policy = None
        self.version += 1
        logger.warning(
            "vpp: times of micro-batches fit no cost law; chunks are of fixed size from now on"
        )
