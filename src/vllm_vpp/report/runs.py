"""Runs as a page or a table shows them, wherever they were kept.

Owns the record of one shown run, and how the three kinds of files become it: a folder that the
plugin recorded, a timeline's JSON, and a results file of `vllm-vpp bench` (one run per arm, the one
of median TTFT that the file keeps).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vllm_vpp.core.metrics import Metrics, measure
from vllm_vpp.core.requests import Seen, prefills
from vllm_vpp.core.timeline import SpanKind, Timeline
from vllm_vpp.core.trace import read_run
from vllm_vpp.errors import InputError

__all__ = ["ShownRun", "only_request", "recorded_run", "runs_of_result", "timeline_run"]

_SETTINGS = ("model", "dtype", "order", "in_flight", "layers", "max_num_batched_tokens", "vllm")
CLIENT = "from sending the request to its first token"
ENGINE = "prefill, from the first submission to the result of the last chunk"
SPANS = "prefill, from the first to the last compute"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRun:
    """One run. `ttft`: seconds to the first token, by request; `measured`: what that means.

    `sent_bytes`: of each transfer, by stage and micro-batch; empty where not recorded.
    `machine`: hardware and versions, empty where they were not recorded. `command`: what measured
    it, if known.
    """

    name: str
    timeline: Timeline
    seen: Seen | None = None
    sent_bytes: Mapping[tuple[int, int], int] = field(default_factory=dict)
    ttft: tuple[tuple[float, ...], ...]
    measured: str
    settings: dict[str, str] = field(default_factory=dict)
    machine: dict[str, str] = field(default_factory=dict)
    command: str | None = None

    @property
    def metrics(self) -> Metrics:
        """Metrics of the whole run."""
        return measure(self.timeline, self.seen)

    @property
    def first_tokens(self) -> tuple[float, ...]:
        """Seconds to the first token, of all requests."""
        return tuple(seconds for times in self.ttft for seconds in times)

    @property
    def total_bytes(self) -> int | None:
        """Bytes of all transfers; None if not recorded."""
        moved = [s for s in self.timeline.spans if s.kind is SpanKind.RECV]
        sizes = [self.sent_bytes.get((s.stage, s.micro_batch)) for s in moved]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None

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
            "sent_bytes": self.total_bytes,
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
        ttft=_prefill_seconds(run.timeline, run.seen),
        measured=ENGINE,
        settings=_settings(run.timeline),
        machine=run.machine,
    )


def timeline_run(path: Path, text: str) -> ShownRun:
    """A timeline's JSON, as `vllm-vpp simulate --timeline` writes it. Raises InputError."""
    timeline = Timeline.from_json(text)
    return ShownRun(
        name=path.stem,
        timeline=timeline,
        ttft=_prefill_seconds(timeline, None),
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
                ttft=tuple(zip(*(r["ttft"] for r in own), strict=True)),
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


def only_request(run: ShownRun, number: int) -> ShownRun:
    """The run from the first to the last compute of one request; -1 is the last request.

    What else was under way in between stays. Raises InputError where there is no such request.
    """
    found = prefills(run.timeline)
    if not -len(found) <= number < len(found):
        raise InputError(
            f"--request {number}: {run.name} has {len(found)}; must be 0 to {len(found) - 1}, or -1"
            " for the last"
        )
    name = found[number].request
    own = {b.index for b in run.timeline.micro_batches if any(c.request == name for c in b.chunks)}
    spans = [s for s in run.timeline.spans if s.kind is SpanKind.COMPUTE and s.micro_batch in own]
    window = min(s.start_ns for s in spans), max(s.end_ns for s in spans)
    return replace(
        run,
        timeline=run.timeline.between(*window),
        ttft=run.ttft[number:][:1] if len(run.ttft) == len(found) else run.ttft,
    )


def _prefill_seconds(timeline: Timeline, seen: Seen | None) -> tuple[tuple[float, ...], ...]:
    return tuple(((p.end_ns - p.start_ns) * 1e-9,) for p in prefills(timeline, seen))


def _settings(timeline: Timeline) -> dict[str, str]:
    notes = timeline.notes
    found = {name: notes[name] for name in _SETTINGS if name in notes}
    if "model" in found:  # older traces say where it lies
        found["model"] = Path(found["model"]).name
    return {"layout": f"{timeline.layout.name}, {timeline.layout.ranks} ranks"} | found
