"""What a user may hand to `analyze` and `report`: told apart by content, not by name.

Owns the choice of a reader for each path, and that every run gets a name of its own.
"""

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vllm_vpp.errors import InputError
from vllm_vpp.profiles.breakdown import Profile, profile
from vllm_vpp.profiles.torch_trace import RankTrace, in_order, says_rank, trace_of
from vllm_vpp.report.runs import (
    ShownRun,
    only_request,
    recorded_run,
    runs_of_result,
    timeline_run,
)

__all__ = ["Inputs", "read_inputs"]

_ALLOWED = (
    "must be a folder recorded with trace_dir, a results file of `vllm-vpp bench`, a timeline of"
    " `vllm-vpp simulate`, or traces of torch.profiler (files, or a folder of them)"
)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Runs of this plugin, or profiles of any vLLM; never both."""

    runs: tuple[ShownRun, ...]
    profiles: tuple[Profile, ...]


def read_inputs(paths: Sequence[Path], request: int | None = None) -> Inputs:
    """Read all of them. Profiler files are the ranks of one run, a folder of them is one run.

    `request`: show runs only while this one is in the pipeline.

    Raises InputError for anything else, and where both kinds are given.
    """
    runs: list[ShownRun] = []
    profiles: list[Profile] = []
    ranks: list[RankTrace] = []
    for path in paths:
        if path.is_dir():
            files = [] if (path / "engine.jsonl").exists() else _traces_in(path)
            if files:
                profiles.append(profile(path.resolve().name, in_order(_ranks_of(files))))
            else:
                runs.append(recorded_run(path))
            continue
        data = _load(path)
        if isinstance(data, dict) and "traceEvents" in data:
            ranks.append(_trace(path, data))
        else:
            runs += _runs(path, data)
    if ranks:
        profiles.append(profile("profile", in_order(ranks)))
    if runs and profiles:
        raise InputError(
            f"{runs[0].name} and {profiles[0].name}: a recorded run and a profile have different"
            " parts; give runs alone or profiles alone"
        )
    named = _named_apart(runs)
    if request is not None:
        named = (only_request(run, request) for run in named)
    return Inputs(tuple(named), tuple(profiles))


def _traces_in(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.name.endswith((".json", ".json.gz")))


def _ranks_of(files: Sequence[Path]) -> list[RankTrace]:
    """Traces of a folder. vLLM's front end leaves one there, too: of no rank, beside ranks'."""
    loaded = [(file, _load(file)) for file in files]
    ranks = [(file, data) for file, data in loaded if says_rank(data)]
    return [_trace(file, data) for file, data in ranks or loaded]


def _load(path: Path) -> Any:
    try:
        raw = path.read_bytes()
        return json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    except OSError as error:
        reason = error.strerror or str(error)
    except (EOFError, zlib.error, ValueError, RecursionError) as error:
        reason = f"not JSON: {error}"
    raise InputError(f"{path}: cannot be read ({reason}); {_ALLOWED}")


def _trace(path: Path, data: Any) -> RankTrace:
    return trace_of(path.name, data)


def _runs(path: Path, data: Any) -> Iterator[ShownRun]:
    if isinstance(data, dict) and "timelines" in data and "runs" in data:
        yield from runs_of_result(path, data)
    elif isinstance(data, dict) and "spans" in data:
        yield timeline_run(path, json.dumps(data))
    else:
        raise InputError(f"{path}: is none of these; {_ALLOWED}")


def _named_apart(runs: Sequence[ShownRun]) -> Iterator[ShownRun]:
    """Runs of the same name get a number."""
    count = Counter(run.name for run in runs)
    number: Counter[str] = Counter()
    for run in runs:
        number[run.name] += 1
        name = f"{run.name} ({number[run.name]})" if count[run.name] > 1 else run.name
        yield replace(run, name=name)
