"""Live numbers on vLLM's own `/metrics`.

Owns the metrics' names and what they are made of. Loaded by vLLM as a stat logger plugin in its
front end; there it registers a collector that reads the engine's `Board` when somebody asks. Does
nothing for an engine without `vpp`, or with "metrics": false.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import StatLoggerBase

from vllm_vpp.plugin import engine_config
from vllm_vpp.plugin.board import Board, RankNumbers
from vllm_vpp.plugin.log import logger

__all__ = ["VPPStatLogger"]

_WINDOW = 10.0  # seconds, at least, that the bubble ratio looks back
_ENGINE = (
    ("active_seconds", "active", "Seconds with micro-batches in flight."),
    ("chunks", "chunks", "Chunks of prompts scheduled."),
    ("chunk_tokens", "chunk_tokens", "Tokens in them."),
    ("replans", "replans", "Times that chunks were planned anew."),
)
_GAUGES = (
    ("in_flight", "in_flight", "Micro-batches in flight."),
    ("cost_model_error", "model_error", "Relative error of the cost law's shape."),
)
_RANK = (
    ("rank_busy_seconds", "busy", "Seconds that a rank ran actions."),
    ("rank_input_wait_seconds", "waiting", "Seconds that a rank waited for input."),
    (
        "rank_exposed_communication_seconds",
        "exposed",
        "Seconds of them with the transfer under way.",
    ),
    ("rank_actions", "actions", "Actions that a rank ran."),
)


class _Engine:
    """One engine's board, and where its numbers stood at least a window ago."""

    def __init__(self, name: str, board: Board) -> None:
        self.name, self.board = name, board
        self._marks = [self._mark()]

    def _mark(self) -> tuple[float, float, list[RankNumbers]]:
        return time.monotonic(), self.board.engine().active, self._ranks()

    def _ranks(self) -> list[RankNumbers]:
        return [self.board.rank(rank) for rank in range(self.board.ranks)]

    def shown(self) -> list[tuple[int, RankNumbers]]:
        """Ranks that have run something; one on another machine cannot write to the board."""
        return [(rank, values) for rank, values in enumerate(self._ranks()) if values.actions]

    def bubbles(self) -> list[float | None]:
        """Bubble ratio of each rank over the last window or two; None where nothing ran.

        1 - (busy + exposed) / active: neither computing nor, while waiting, receiving.
        """
        now = self._mark()
        while len(self._marks) > 1 and now[0] - self._marks[1][0] >= _WINDOW:
            self._marks.pop(0)
        if now[0] - self._marks[-1][0] >= _WINDOW:
            self._marks.append(now)
        _, active, ranks = self._marks[0]
        lasted = now[1] - active
        if lasted <= 0:
            return [None] * len(ranks)
        pairs = zip(now[2], ranks, strict=True)
        filled = (b.busy - a.busy + b.exposed - a.exposed for b, a in pairs)
        return [min(max(1 - seconds / lasted, 0.0), 1.0) for seconds in filled]


class _Collector:
    """All engines of this process, by name; one that starts anew takes the place of the old one."""

    def __init__(self) -> None:
        self.engines: dict[str, _Engine] = {}

    def describe(self) -> list[Metric]:
        """Nothing: names are known once an engine runs."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Metrics of all engines that run; every name begins with vllm:vpp_."""
        running = [e for e in self.engines.values() if e.board.path.exists()]
        if running:
            yield from _engine_metrics(running)
            yield from _rank_metrics(running)


def _engine_metrics(engines: Sequence[_Engine]) -> Iterator[Metric]:
    numbers = {engine.name: engine.board.engine() for engine in engines}
    for name, field, text in _ENGINE:
        counter = CounterMetricFamily(f"vllm:vpp_{name}", text, labels=["engine"])
        for engine, values in numbers.items():
            counter.add_metric([engine], getattr(values, field))
        yield counter
    for name, field, text in _GAUGES:
        gauge = GaugeMetricFamily(f"vllm:vpp_{name}", text, labels=["engine"])
        for engine, values in numbers.items():
            gauge.add_metric([engine], getattr(values, field))
        yield gauge


def _rank_metrics(engines: Sequence[_Engine]) -> Iterator[Metric]:
    for name, field, text in _RANK:
        counter = CounterMetricFamily(f"vllm:vpp_{name}", text, labels=["engine", "rank"])
        for engine in engines:
            for rank, numbers in engine.shown():
                counter.add_metric([engine.name, str(rank)], getattr(numbers, field))
        yield counter
    gauge = GaugeMetricFamily(
        "vllm:vpp_rank_bubble_ratio",
        "Share of the last seconds with micro-batches in flight that a rank neither computed nor"
        " waited for a transfer under way.",
        labels=["engine", "rank"],
    )
    for engine in engines:
        bubbles = engine.bubbles()
        for rank, _ in engine.shown():
            if (bubble := bubbles[rank]) is not None:
                gauge.add_metric([engine.name, str(rank)], bubble)
    yield gauge


_COLLECTOR: _Collector | None = None


class VPPStatLogger(StatLoggerBase):
    """Registers the engine's board once the engine runs; takes nothing from vLLM's own stats."""

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        self._config = vllm_config
        self._index = engine_index
        wanted = engine_config.wants_vpp(vllm_config.additional_config)
        self._shown = not (wanted and engine_config.settings_of(vllm_config).metrics)

    def record(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to take over."""

    def log_engine_initialized(self) -> None:
        """Show the engine's numbers from now on."""
        global _COLLECTOR  # noqa: PLW0603 - Prometheus' registry is global, too
        if self._shown:
            return
        self._shown = True
        board = Board.join(self._config, self._index)
        if board is None:
            logger.warning("vpp: no live metrics: the engine is not on this machine")
            return
        if _COLLECTOR is None:
            _COLLECTOR = _Collector()
            REGISTRY.register(_COLLECTOR)
        name = str(self._index)
        _COLLECTOR.engines[name] = _Engine(name, board)
