"""Runs a suite and keeps what it finds, run by run, so that an interrupted one can go on.

Owns the form of the files in `results/`: everything raw, and one timeline per arm.
`tools/make_docs.py` turns them into tables.
"""

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vllm_vpp.bench.compare import Measured, compare
from vllm_vpp.bench.engine import Request
from vllm_vpp.bench.suite import Suite
from vllm_vpp.core.trace import read_run
from vllm_vpp.errors import InputError
from vllm_vpp.machine import machine

__all__ = ["run_suite"]

Result = dict[str, Any]


def run_suite(
    suite: Suite,
    *,
    rounds: int,
    folder: Path,
    command: str,
    tell: Callable[[str], object],
    before: Result | None = None,
) -> Iterator[Result]:
    """Measure a suite; gives the result so far after each round, as plain data for JSON.

    `before`: a result to add rounds to, until there are `rounds`. Raises EngineError, and
    InputError where `before` is of other arms, other software or another machine.
    """
    arms, cases = suite.plan()
    result: Result = {
        "suite": suite.name,
        "title": suite.title,
        "command": command,
        "machine": machine(),
        "arms": {arm.name: _portable(asdict(arm)) for arm in arms},
        "prompt_tokens": {name: [len(r.prompt) for r in case] for name, case in cases.items()},
        "arrivals": {n: [r.at for r in case] for n, case in cases.items() if _is_timed(case)},
        "runs": [],
        "control": {},
        "timelines": [],
    }
    if before is not None:
        _check_same(before, result)
        kept = ("runs", "control", "timelines", "timed")
        result |= {name: before[name] for name in kept if name in before}
    for group in (arms[i : i + suite.alive] for i in range(0, len(arms), suite.alive)):
        done = sum(run["arm"] == group[0].name for run in result["runs"]) // len(cases)
        if done >= rounds:
            continue
        earlier = dict(result["control"])
        runs = compare(group, cases, rounds=range(done, rounds), folder=folder, tell=tell)
        for some in _batched(runs, len(group) * len(cases)):
            for run in some:
                result["runs"].append(run.as_dict())
                _keep_timeline(result, run, all_of_them=suite.alive == 1)
            for arm in (arm for arm in group if arm.has_trace):
                now = _control(folder / f"{arm.name}.trace")
                result["control"][arm.name] = _sum(earlier.get(arm.name, {}), now)
            yield result
    if suite.timed is not None and "timed" not in result:
        result["timed"] = suite.timed(tell)
        yield result


# fields of an arm that older files lack
_ADDED: Result = {"record": True, "profile": False, "watch": None}


def _check_same(before: Result, now: Result) -> None:
    """Raises InputError unless both are measurements of the same things."""
    arms = {name: _ADDED | arm for name, arm in before.get("arms", {}).items()}
    # older files do not name the instructions
    hardware = {"instructions": now["machine"]["instructions"]}
    before = {"arrivals": {}} | before | {"arms": arms}
    before["machine"] = hardware | before.get("machine", {})
    for name in ("suite", "arms", "prompt_tokens", "arrivals", "machine"):
        if before.get(name) != now[name]:
            raise InputError(
                f"{name}: the result there has another one than would be measured now; measure anew"
                " with --fresh, or choose another --out"
            )


def _is_timed(case: Iterable[Request]) -> bool:
    return any(request.at for request in case)


def _batched(runs: Iterable[Measured], size: int) -> Iterator[list[Measured]]:
    """Runs in lists of `size`; what is left over at the end is dropped."""
    some: list[Measured] = []
    for run in runs:
        some.append(run)
        if len(some) == size:
            yield some
            some = []


def _portable(arm: Result) -> Result:
    """Without paths of this machine."""
    return arm | {"model": Path(arm["model"]).name}


def _control(trace: Path) -> dict[str, float]:
    """Host time outside the model runners over the whole life of an engine, in seconds."""
    run = read_run(trace)
    return {
        "engine_seconds": run.control.engine_ns * 1e-9,
        "rank_seconds": max(run.control.rank_ns) * 1e-9,
        "actions": run.control.actions,
        "actions_per_rank": max(run.control.rank_actions),
        "compute_seconds": run.control.compute_ns * 1e-9 / run.timeline.layout.ranks,
    }


def _sum(some: dict[str, float], more: dict[str, float]) -> dict[str, float]:
    return {name: some.get(name, 0) + value for name, value in more.items()}


def _keep_timeline(result: Result, run: Measured, *, all_of_them: bool) -> None:
    """Keep the timeline, unless one is kept that is nearer to the arm's median.

    Nearer in the time to all first tokens, which is what tables compare.
    """
    kept = {
        "arm": run.arm,
        "case": run.case,
        "round": run.round,
        "timeline": run.timeline.to_json() if run.timeline is not None else None,
    }
    mine = [t for t in result["timelines"] if t["arm"] == run.arm]
    if all_of_them or not mine:
        result["timelines"].append(kept)
        return
    if mine[0]["case"] != run.case:
        return
    times = {
        r["round"]: r["first_tokens_seconds"]
        for r in result["runs"]
        if r["arm"] == run.arm and r["case"] == run.case
    }
    middle = statistics.median(times.values())
    if abs(times[run.round] - middle) < abs(times[mine[0]["round"]] - middle):
        mine[0].update(kept)
