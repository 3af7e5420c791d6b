"""Runs as a page or a table shows them, wherever they were kept.

Owns the record of one shown run, and how the three kinds of files become it: a folder that the
plugin recorded, a timeline's JSON, and a results file of `vllm-vpp bench` (one run per arm, the one
of median TTFT that the file keeps).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_vpp.core.metrics import Metrics, measure
from vllm_vpp.core.requests import Seen, prefills
from vllm_vpp.core.timeline import Timeline
from vllm_vpp.core.trace import read_run
from vllm_vpp.errors import InputError

__all__ = ["ShownRun", "recorded_run", "runs_of_result", "timeline_run"]

_SETTINGS = ("model", "dtype", "order", "in_flight", "layers", "max_num_batched_tokens", "vllm")
CLIENT = "from sending the request to its first token"
ENGINE = "prefill, from the first submission to the result of the last chunk"
SPANS = "prefill, from the first to the last compute"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRun:
    """One run. `first_tokens`: seconds of each request, `measured` as that says.

    `machine`: hardware and versions, empty where they were not recorded. `command`: what measured
    it, if known.
    """

    name: str
    timeline: Timeline
    seen: Seen | None = None
    sent_bytes: int | None = None
    first_tokens: tuple[float, ...]
    measured: str
    settings: dict[str, str] = field(default_factory=dict)
    machine: dict[str, str] = field(default_factory=dict)
    command: str | None = None

    @property
    def metrics(self) -> Metrics:
        """Metrics of the whole run."""
        return measure(self.timeline, self.seen)

    @property
    def tokens(self) -> int:
        """Tokens computed, prefill and decode."""
        computed = {span.micro_batch for span in self.timeline.spans}
        return sum(b.tokens for b in self.timeline.micro_batches if b.index in computed)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without the spans."""
        layout = self.timeline.layout
        return {
            "name": self.name,
            "source": self.timeline.source,
            "layout": layout.name,
            "ranks": layout.ranks,
            "sweeps": layout.sweeps,
            "tokens": self.tokens,
            "sent_bytes": self.sent_bytes,
            "metrics": self.metrics.as_dict(),
            "first_token_seconds": list(self.first_tokens),
            "first_token_means": self.measured,
            "settings": self.settings,
            "machine": self.machine,
            "command": self.command,
        }


def recorded_run(folder: Path) -> ShownRun:
    """A folder that `trace_dir` named. Raises InputError."""
    run = read_run(folder)
    return ShownRun(
        name=folder.resolve().name.removesuffix(".trace"),
        timeline=run.timeline,
        seen=run.seen,
        sent_bytes=run.sent_bytes,
        first_tokens=_prefill_seconds(run.timeline, run.seen),
        measured=ENGINE,
        settings=_settings(run.timeline),
    )


def timeline_run(path: Path, text: str) -> ShownRun:
    """A timeline's JSON, as `vllm-vpp simulate --timeline` writes it. Raises InputError."""
    timeline = Timeline.from_json(text)
    return ShownRun(
        name=path.stem,
        timeline=timeline,
        first_tokens=_prefill_seconds(timeline, None),
        measured=SPANS,
        settings=_settings(timeline),
    )


def runs_of_result(path: Path, result: dict[str, Any]) -> Iterator[ShownRun]:
    """One run per timeline kept in a results file. Raises InputError for a damaged one."""
    try:
        kept = [t for t in result["timelines"] if t["timeline"] is not None]
        for one in kept:
            own = [r for r in result["runs"] if (r["arm"], r["case"]) == (one["arm"], one["case"])]
            several = sum(t["arm"] == one["arm"] for t in kept) > 1
            where = f", {one['case']}, round {one['round']}" if several else ""
            timeline = Timeline.from_json(one["timeline"])
            yield ShownRun(
                name=one["arm"] + where,
                timeline=timeline,
                first_tokens=tuple(seconds for r in own for seconds in r["ttft"]),
                measured=CLIENT,
                settings=_settings(timeline),
                machine=dict(result["machine"]),
                command=result["command"],
            )
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{path}: not a results file ({error!r}); give one that `vllm-vpp bench` wrote"
        ) from None
    if not kept:
        raise InputError(f"{path}: keeps no timeline; give a results file of arms that use vpp")


def _prefill_seconds(timeline: Timeline, seen: Seen | None) -> tuple[float, ...]:
    return tuple((p.end_ns - p.start_ns) * 1e-9 for p in prefills(timeline, seen))


def _settings(timeline: Timeline) -> dict[str, str]:
    notes = timeline.notes
    found = {name: notes[name] for name in _SETTINGS if name in notes}
    if "model" in found:  # older traces say where it lies
        found["model"] = Path(found["model"]).name
    return {"layout": f"{timeline.layout.name}, {timeline.layout.ranks} ranks"} | found
