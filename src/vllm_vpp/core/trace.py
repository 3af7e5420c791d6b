"""Reads the trace folder that the plugin's recorder wrote, as a `Timeline`.

Owns the meaning of the raw records. One file per process and, once that was long enough, an older
one beside it (`older`); one JSON value a line: a header, then
  engine: ["b", index, [[request, prefix, tokens], ...], submitted_ns], with one number more where
          it needs the outcome of an earlier one: its index; ["d", index, result_ns],
          ["p", seconds spent on the last submit or wait, in ns]
  ranks:  ["c", stage, index, start_ns, end_ns] compute;
          ["s", stage, index, start_ns, bytes] a send into `stage`; older files lack the bytes;
          ["r", stage, index, posted_ns, done_ns, waited_ns] a receive and how long the rank stood
          still for it; ["m", start_ns, end_ns, actions] one message.
`machine.json` beside them, missing from older folders, says what they were made on. Micro-batches
of which some records are gone, with an older file or as recording was off, are left out; the newest
may be incomplete, where a run ended by force.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.core.cost import QuadraticCost
from vllm_vpp.core.layout import Layout
from vllm_vpp.core.requests import Seen
from vllm_vpp.core.timeline import Span, SpanKind, Timeline
from vllm_vpp.errors import InputError

__all__ = ["Control", "Run", "older", "read_run"]


@dataclass(slots=True)
class Control:
    """Host time outside the model runners, in nanoseconds, with the number of actions it served."""

    engine_ns: int = 0
    rank_ns: list[int] = field(default_factory=list)
    rank_actions: list[int] = field(default_factory=list)
    compute_ns: int = 0

    @property
    def actions(self) -> int:
        """Actions of all ranks."""
        return sum(self.rank_actions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A recorded run.

    `submitted_ns`, `result_ns`: by micro-batch, as the engine saw them. `law`: what the virtual
    clock went by. `layers`: of each stage.
    `sent_bytes`: of each transfer, by stage and micro-batch; empty where not recorded.
    `machine`: hardware and versions, by name; empty where not recorded.
    `after`: the earlier micro-batch whose outcome one needs; only where it was submitted before.
    """

    timeline: Timeline
    submitted_ns: dict[int, int]
    result_ns: dict[int, int]
    control: Control
    layers: tuple[int, ...]
    law: QuadraticCost
    sent_bytes: dict[tuple[int, int], int] = field(default_factory=dict)
    machine: dict[str, str] = field(default_factory=dict)
    after: dict[int, int] = field(default_factory=dict)

    @property
    def seen(self) -> Seen:
        """What the engine saw, as metrics want it.

        A micro-batch that needs the outcome of another could not run before that was there.
        """
        ready = {
            index: max(self.submitted_ns[index], self.result_ns.get(earlier, 0))
            for index, earlier in self.after.items()
        }
        return Seen(self.submitted_ns | ready, self.result_ns)


def older(path: Path) -> Path:
    """Where the records before those of a file are, if there are any."""
    return path.with_name(path.name + ".old")


def read_run(folder: Path | str) -> Run:
    """Read one trace folder. Raises InputError, naming file and line, for anything unreadable."""
    folder = Path(folder)
    files = sorted(folder.glob("rank*.jsonl"))
    engine = folder / "engine.jsonl"
    if not files or not engine.exists():
        raise InputError(f'{folder}: no recorded run in it; give a folder that "trace_dir" named')
    header, *records = _records(engine)
    missing = [key for key in ("ranks", "sweeps", "layers", "law") if key not in header]
    if missing:
        raise InputError(
            f"{engine}:1: no {', '.join(missing)}; another version wrote it; record the run again"
        )
    layout = Layout(header["ranks"], header["sweeps"])
    control = Control()
    batches: dict[int, tuple[Chunk, ...]] = {}
    submitted: dict[int, int] = {}
    result: dict[int, int] = {}
    after: dict[int, int] = {}
    for record in records:
        match record:
            case ["b", index, chunks, at, *earlier]:
                batches[index] = tuple(Chunk(*c) for c in chunks)
                submitted[index] = at
                after.update((index, one) for one in earlier)
            case ["d", index, at]:
                result[index] = at
            case ["p", spent]:
                control.engine_ns += spent
    sizes: dict[tuple[int, int], int] = {}
    found = list(_spans(files, control, sizes))
    kept = _complete(batches, found, layout.stages)
    spans = sorted(
        (s for s in found if s.micro_batch in kept),
        key=lambda s: (s.start_ns, s.rank, s.kind, s.stage),
    )
    timeline = Timeline(
        layout=layout,
        spans=tuple(spans),
        micro_batches=tuple(MicroBatch(i, batches[i]) for i in sorted(kept)),
        source="measured",
        notes={key: str(value) for key, value in header.items()},
    )
    return Run(
        timeline=timeline,
        submitted_ns=submitted,
        result_ns=result,
        control=control,
        layers=tuple(header["layers"]),
        law=QuadraticCost(**header["law"]),
        sent_bytes=sizes,
        machine=_machine(folder / "machine.json"),
        after=after,
    )


def _complete(batches: dict[int, tuple[Chunk, ...]], spans: list[Span], stages: int) -> set[int]:
    """Micro-batches that ran on all stages, as far as it is known, and all later ones."""
    ran: Counter[int] = Counter(s.micro_batch for s in spans if s.kind is SpanKind.COMPUTE)
    whole = {i for i, chunks in batches.items() if not chunks or ran[i] == stages}
    newest = max(whole, default=-1)
    return whole | {i for i in batches if i > newest}


def _machine(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        facts = None
    if not isinstance(facts, dict):
        raise InputError(f"{path}: not a JSON object; the file is damaged; remove it")
    return {str(name): str(value) for name, value in facts.items()}


def _spans(
    files: list[Path], control: Control, sizes: dict[tuple[int, int], int]
) -> Iterator[Span]:
    sends: dict[tuple[int, int], tuple[int, int]] = {}
    receives: list[tuple[int, int, int, int, int]] = []
    for path in files:
        header, *records = _records(path)
        if not isinstance(rank := header.get("rank"), int):
            raise InputError(f"{path}:1: names no rank; the file is damaged; record the run again")
        busy = handled = actions = 0
        for record in records:
            match record:
                case ["c", stage, index, start, end]:
                    busy += end - start
                    control.compute_ns += end - start
                    yield Span(rank, SpanKind.COMPUTE, stage, index, start, end)
                case ["s", stage, index, start, *size]:
                    sends[stage, index] = (rank, start)
                    sizes.update(((stage, index), n) for n in size)
                case ["r", stage, index, posted, done, waited]:
                    busy += waited
                    receives.append((rank, stage, index, posted, done))
                case ["m", start, end, ran]:
                    handled += end - start
                    actions += ran
        control.rank_ns.append(handled - busy)
        control.rank_actions.append(actions)
    for rank, stage, index, posted, done in receives:
        if (stage, index) not in sends:
            continue  # the sender's file was cut short
        sender, sent = sends[stage, index]
        start = min(max(posted, sent), done)
        yield Span(rank, SpanKind.WAIT, stage, index, min(posted, start), start)
        yield Span(rank, SpanKind.RECV, stage, index, start, done)
        yield Span(sender, SpanKind.SEND, stage, index, start, done)


def _records(path: Path) -> list[Any]:
    """Lines that are complete: the last one may be being written, or cut off by a full disk."""
    before = _records(older(path)) if older(path).exists() else []
    found = []
    whole, _, _ = path.read_text(encoding="ascii").rpartition("\n")
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            found.append(json.loads(line))
        except ValueError:
            raise InputError(
                f"{path}:{number}: not JSON; the file is damaged; record the run again"
            ) from None
    if not found or not isinstance(found[0], dict):
        raise InputError(f"{path}:1: no header; the file is damaged; record the run again")
    return [found[0], *before[1:], *found[1:]]
