"""Operator groups of a measured run, from the traces that vLLM's own profiler left.

Owns where the traces lie while a run is measured; what they mean is `profiles`' business.
"""

import gzip
import json
from pathlib import Path

from vllm_vpp.bench.engine import Arm
from vllm_vpp.profiles import Profile, in_order, profile, trace_of

__all__ = ["profile_folder", "profile_of"]

_PATTERN = "*.pt.trace.json.gz"


def profile_folder(arm: Arm, folder: Path) -> Path | None:
    """Where the traces of an arm go; None for an arm that is not profiled."""
    return folder / f"{arm.name}.profile" if arm.profile else None


def profile_of(arm: Arm, folder: Path) -> Profile | None:
    """The newest run's breakdown, one trace per rank; they are removed, so that the next is alone.

    Raises InputError where the profiler left none.
    """
    place = profile_folder(arm, folder)
    if place is None:
        return None
    paths = sorted(place.glob(_PATTERN))
    traces = [trace_of(p.name, json.loads(gzip.decompress(p.read_bytes()))) for p in paths]
    for path in paths:
        path.unlink()
    return profile(arm.name, in_order(traces))
