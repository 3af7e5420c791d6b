"""Requests of many lengths: the paper's distribution, and a real trace, scaled to small models.

Owns lengths and arrivals. The paper's mixed workload is not public; the published figures of its
lengths are (arXiv 2608.26523): 7 to 122,710 tokens, mean about 22.5K, median 10K, p90 64K.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import as_file, files

from vllm_vpp.sim.request import Request, read_trace

__all__ = ["conversation", "paper_lengths", "scaled"]

_LEAST, _MEDIAN, _P90, _MOST = 7, 10_000, 64_000, 122_710
_BEND = 1.72  # of the lower half, such that the mean is the published one


def paper_lengths(count: int, seed: int = 0) -> list[int]:
    """Prompt lengths at evenly spaced quantiles of the paper's distribution, shuffled.

    Q(u) is 7 + 9993 (2u)^1.72 up to the median, and straight in log length between median, 90th
    percentile and maximum.
    """
    lengths = [round(_quantile((i + 0.5) / count)) for i in range(count)]
    random.Random(seed).shuffle(lengths)
    return lengths


def _quantile(u: float) -> float:
    if u < 0.5:
        return _LEAST + (_MEDIAN - _LEAST) * float((2 * u) ** _BEND)
    if u < 0.9:
        low, high, share = _MEDIAN, _P90, (u - 0.5) / 0.4
    else:
        low, high, share = _P90, _MOST, (u - 0.9) / 0.1
    return low * float((high / low) ** share)


def conversation() -> list[Request]:
    """The first 15 seconds of a public trace of conversations (`data/README.md` has the source)."""
    with as_file(files("vllm_vpp.bench") / "data" / "mooncake_conversation.jsonl") as path:
        return read_trace(path)


def scaled(requests: Sequence[Request], by: int) -> list[Request]:
    """Prompts and outputs shorter by that factor, at least a token each; arrivals as they are."""
    return [
        replace(r, prompt=max(r.prompt // by, 1), output=max(r.output // by, 1), cached=0)
        for r in requests
    ]
