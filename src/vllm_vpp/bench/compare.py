"""Interleaved measurements of several arms on the same prompt.

Owns the order of runs (each round in turn, every other one reversed, so that a drifting machine
favours nobody) and what is kept of each run. Statistics are in `stats`, pictures in `report`.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vllm_vpp.bench.engine import Arm, Engine, Reply, Request
from vllm_vpp.bench.operators import profile_folder, profile_of
from vllm_vpp.core.metrics import Metrics, measure
from vllm_vpp.core.timeline import SpanKind, Timeline
from vllm_vpp.core.trace import read_run
from vllm_vpp.profiles import Profile

__all__ = ["Measured", "chunk_times", "compare"]

Tell = Callable[[str], object]
Cases = Mapping[str, Sequence[Request]]
_WARM_TOKENS = 4096  # reaches every kernel and buffer; the whole prompt would take as long as a run
_WAKE_TOKENS = 1024  # brings back what the system took from an engine while others were measured
_SETTLED_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run of one arm: what the client saw and, if recorded, what the ranks did.

    `peak_bytes`: largest resident memory so far, by process. `profile`: of an arm that is profiled.
    """

    arm: str
    case: str
    round: int
    replies: tuple[Reply, ...]
    timeline: Timeline | None
    peak_bytes: dict[str, int]
    profile: Profile | None = None

    @property
    def start_ns(self) -> int:
        """When the first request was sent."""
        return min(reply.sent_ns for reply in self.replies)

    @property
    def ttft(self) -> float:
        """Seconds to the first token of the first request."""
        return self.replies[0].ttft

    @property
    def metrics(self) -> Metrics:
        """Metrics until the first token; needs a trace."""
        assert self.timeline is not None
        return measure(self.timeline)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data: dict[str, Any] = {
            "arm": self.arm,
            "case": self.case,
            "round": self.round,
            "ttft": [reply.ttft for reply in self.replies],
            "itl": [reply.itl for reply in self.replies],
            "tokens": [list(reply.tokens) for reply in self.replies],
            "logprobs": [list(reply.logprobs) for reply in self.replies],
            "seconds": (max(r.token_ns[-1] for r in self.replies) - self.start_ns) * 1e-9,
            "first_tokens_seconds": (max(r.token_ns[0] for r in self.replies) - self.start_ns)
            * 1e-9,
            "peak_bytes": self.peak_bytes,
        }
        if self.timeline is not None:
            data["metrics"] = self.metrics.as_dict()
            data["chunk_seconds"] = chunk_times(self.timeline)
        if self.profile is not None:
            data["operators"] = self.profile.as_dict()
        return data


def chunk_times(timeline: Timeline) -> list[float]:
    """Whole-model seconds of each micro-batch in turn: its compute summed over all stages."""
    totals: dict[int, int] = {}
    for span in timeline.spans:
        if span.kind is SpanKind.COMPUTE:
            totals[span.micro_batch] = totals.get(span.micro_batch, 0) + span.end_ns - span.start_ns
    return [totals[index] * 1e-9 for index in sorted(totals)]


def compare(
    arms: Sequence[Arm],
    cases: Cases,
    *,
    rounds: Iterable[int],
    folder: Path,
    tell: Tell = lambda text: None,
    adapt: Callable[[int, float], Cases] | None = None,
) -> Iterator[Measured]:
    """Start the arms' engines, warm each up with the start of a prompt, then measure all in turn.

    `adapt` makes the cases anew from the tokens of that start and the seconds that it took. Each of
    the `rounds`, named by number, runs every case on every arm; odd ones in reverse. Before each
    run its engine answers a short prompt: an idle one may have lost its code pages to the system's
    page reclaim. Logs and traces go to `folder`. All engines stay alive; idle ones sleep.
    Raises EngineError.
    """
    longest = max((r for case in cases.values() for r in case), key=lambda r: len(r.prompt))
    warm, wake = (
        Request(prompt=longest.prompt[:n], max_tokens=2) for n in (_WARM_TOKENS, _WAKE_TOKENS)
    )
    with ExitStack() as stack:
        tell("starting engines")
        hosts = {arm.name: _host(arm, arms) for arm in arms}
        engines = {}
        for arm in arms:
            if hosts[arm.name] is not arm:
                continue
            engines[arm.name] = engine = stack.enter_context(
                Engine(
                    arm,
                    log=folder / f"{arm.name}.log",
                    trace_dir=_trace(arm, folder),
                    profile_dir=profile_folder(arm, folder),
                )
            )
            engine.wait_ready()  # one after another: loading takes more memory than serving
            tell(f"{arm.name}: ready")
        seconds: list[float] = []
        for name, engine in engines.items():
            began = time.monotonic()
            engine.run([warm], measured=False)
            seconds.append(time.monotonic() - began)
            tell(f"{name}: warmed up")
        if adapt is not None:
            cases = adapt(len(warm.prompt), min(seconds))
        for turn in rounds:
            for case, requests in cases.items():
                for arm in arms if turn % 2 == 0 else reversed(arms):
                    engine = engines[hosts[arm.name].name]
                    engine.run([wake], measured=False, watch=arm.watch)
                    run = _measure(arm, engine, (case, turn), requests, folder)
                    tell(f"{arm.name}{case and ', ' + case}: first token after {run.ttft:.2f} s")
                    yield run


def _host(arm: Arm, arms: Sequence[Arm]) -> Arm:
    """The arm with whose settings the engine of `arm` is started."""
    if arm.watch is None:
        return arm
    shared = [a for a in arms if a.watch is not None]
    like = [a for a in shared if replace(a, name=arm.name, watch=arm.watch) == arm]
    return next((a for a in like if a.has_trace), like[0])


def _measure(
    arm: Arm, engine: Engine, place: tuple[str, int], requests: Sequence[Request], folder: Path
) -> Measured:
    replies = tuple(engine.run(requests))
    _wait_written(_trace(arm, folder))
    return Measured(
        arm=arm.name,
        case=place[0],
        round=place[1],
        replies=replies,
        timeline=_timeline(arm, folder, replies),
        peak_bytes=engine.peak_bytes(),
        profile=profile_of(arm, folder),
    )


def _wait_written(trace: Path | None) -> None:
    """Until an idle engine has written all: a rank writes after it has replied."""
    sizes: list[int] | None = None
    while trace is not None:
        before, sizes = sizes, [path.stat().st_size for path in sorted(trace.glob("*.jsonl"))]
        if sizes == before:
            return
        time.sleep(_SETTLED_S)


def _trace(arm: Arm, folder: Path) -> Path | None:
    return folder / f"{arm.name}.trace" if arm.has_trace else None


def _timeline(arm: Arm, folder: Path, replies: Sequence[Reply]) -> Timeline | None:
    """What the ranks did until the last first token, micro-batches numbered from 0."""
    trace = _trace(arm, folder)
    if trace is None:
        return None
    start = min(reply.sent_ns for reply in replies)
    end = max(reply.token_ns[0] for reply in replies)
    part = read_run(trace).timeline.between(start, end)
    computed = {s.micro_batch for s in part.spans if s.kind is SpanKind.COMPUTE}
    first = min(computed)
    return replace(
        part,
        spans=tuple(
            s._replace(micro_batch=s.micro_batch - first)
            for s in part.spans
            if s.micro_batch in computed
        ),
        micro_batches=tuple(
            m._replace(index=m.index - first) for m in part.micro_batches if m.index in computed
        ),
    )
