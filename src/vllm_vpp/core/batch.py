"""What one scheduler step sends through the stages.

Owns the two records that costs, policies and timelines talk about. Leaves to chunking policies how
a prompt is cut.
"""

from typing import NamedTuple

__all__ = ["Chunk", "MicroBatch"]


class Chunk(NamedTuple):
    """`tokens` new tokens of a request after `prefix` computed ones; one token is a decode step."""

    request: str
    prefix: int
    tokens: int


class MicroBatch(NamedTuple):
    """Chunks and decode tokens of one scheduler step; empty where it only carries bookkeeping."""

    index: int  # type: ignore[assignment]  # nobody searches it as a tuple
    chunks: tuple[Chunk, ...]

    @property
    def tokens(self) -> int:
        """Tokens computed."""
        return sum(chunk.tokens for chunk in self.chunks)
