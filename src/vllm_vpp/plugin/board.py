"""A few numbers that the processes of one engine share while it runs, for `/metrics`.

Owns a small mapped file, private to its owner: the engine creates and removes it, ranks on the same
machine write their own part of it, front ends read it (`live`). Nothing is locked: each number is
eight aligned bytes that one process writes.
"""

import mmap
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from vllm.config import VllmConfig

from vllm_vpp.plugin import engine_config
from vllm_vpp.plugin.log import logger

__all__ = ["Board", "EngineNumbers", "RankNumbers"]

_RING = 64  # send times kept per boundary, more than transfers that can be under way


class EngineNumbers(NamedTuple):
    """What the engine writes. Seconds are sums since the start.

    active: micro-batches were in flight. in_flight: now. chunks, chunk_tokens: of prompts.
    model_error: relative error of the cost law's shape on the newest micro-batches. replans: new
    chunking policies since the start.
    """

    active: float
    in_flight: float
    chunks: float
    chunk_tokens: float
    model_error: float
    replans: float


class RankNumbers(NamedTuple):
    """What a rank writes.

    busy: seconds of its actions. waiting: seconds for input, of these exposed: while the transfer
    was under way. actions: run.
    """

    busy: float
    waiting: float
    exposed: float
    actions: float


class Board:
    """Numbers of the engine with this config, the `index`-th of its data-parallel siblings."""

    def __init__(self, config: VllmConfig, index: int, *, create: bool = False) -> None:
        layout = engine_config.layout_of(config)
        self.ranks = layout.ranks
        self._rings = len(EngineNumbers._fields) + len(RankNumbers._fields) * layout.ranks
        size = 8 * (self._rings + _RING * layout.stages)
        self.path = self._path(config, index)
        flags = os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT | os.O_EXCL if create else 0)
        handle = os.open(self.path, flags, 0o600)
        try:
            if create:
                os.posix_fallocate(handle, 0, size)  # a sparse file could not be written to later
            found = os.fstat(handle)
            if found.st_uid != os.getuid() or found.st_size != size:
                raise PermissionError(f"{self.path} is not this engine's")
            self._map = mmap.mmap(handle, size)
        except OSError:
            if create:
                self.remove()
            raise
        finally:
            os.close(handle)
        self._numbers = memoryview(self._map).cast("d")

    @staticmethod
    def _path(config: VllmConfig, index: int) -> Path:
        name = f"vllm-vpp-{os.getuid()}-{config.instance_id}-{index}.board"
        return Path(tempfile.gettempdir()) / name

    @classmethod
    def create(cls, config: VllmConfig) -> "Board | None":
        """The engine's own; None, and a line in the log, where no file can be made."""
        with suppress(OSError):
            cls._path(config, config.parallel_config.data_parallel_index).unlink()
        try:
            return cls(config, config.parallel_config.data_parallel_index, create=True)
        except OSError as error:
            logger.warning("vpp: no live metrics: %s", error)
            return None

    @classmethod
    def join(cls, config: VllmConfig, index: int | None = None) -> "Board | None":
        """The engine's board, or None where there is none (another machine)."""
        own = config.parallel_config.data_parallel_index
        try:
            return cls(config, own if index is None else index)
        except (OSError, ValueError):
            return None

    def engine(self) -> EngineNumbers:
        """The engine's numbers."""
        return EngineNumbers(*self._numbers[: len(EngineNumbers._fields)])

    def set_engine(self, numbers: EngineNumbers) -> None:
        """Write the engine's numbers."""
        for place, value in enumerate(numbers):
            self._numbers[place] = value

    def rank(self, rank: int) -> RankNumbers:
        """A rank's numbers."""
        start = self._start(rank)
        return RankNumbers(*self._numbers[start : start + len(RankNumbers._fields)])

    def add_rank(self, rank: int, more: RankNumbers) -> None:
        """Add to a rank's numbers."""
        start = self._start(rank)
        for place, value in enumerate(more, start):
            self._numbers[place] += value

    def _start(self, rank: int) -> int:
        return len(EngineNumbers._fields) + rank * len(RankNumbers._fields)

    def set_sent(self, stage: int, number: int, at_ns: int) -> None:
        """Note when the `number`-th input of `stage` was sent."""
        self._numbers[self._rings + stage * _RING + number % _RING] = float(at_ns)

    def sent_ns(self, stage: int, number: int) -> int | None:
        """When that was; None where the sender is on another machine."""
        return int(self._numbers[self._rings + stage * _RING + number % _RING]) or None

    def remove(self) -> None:
        """Take the file away; processes that have mapped it may go on."""
        with suppress(FileNotFoundError):
            self.path.unlink()
