"""Requests that arrive over time, and the trace files that describe them.

Owns one record and its file form: one JSON object a line with `timestamp` (milliseconds from the
start), `input_length`, `output_length` (tokens) and optionally `cached_tokens` and `priority`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_vpp.errors import InputError

__all__ = ["Request", "at_once", "one_after_another", "read_trace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt of `prompt` tokens, `cached` of them computed already, and `output` tokens to come.

    `arrival`: seconds from the start. `after`: name of the request whose last token must be out
    first (a client that waits). `priority`: smaller goes first.
    """

    name: str
    prompt: int
    output: int = 1
    arrival: float = 0.0
    cached: int = 0
    priority: int = 0
    after: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("prompt", 1), ("output", 1), ("cached", 0)):
            if getattr(self, name) < least:
                raise InputError(
                    f"{name}={getattr(self, name)}: must be at least {least}; correct it"
                )
        if self.cached >= self.prompt:
            raise InputError(
                f"cached={self.cached}: must be less than the {self.prompt} tokens of the prompt;"
                " correct it"
            )
        if not 0 <= self.arrival < float("inf"):
            raise InputError(f"arrival={self.arrival}: must be at least 0 seconds; correct it")


def at_once(prompts: Sequence[int], *, output: int = 1) -> list[Request]:
    """All prompts arrive at time 0."""
    return [Request(name=f"r{i}", prompt=p, output=output) for i, p in enumerate(prompts)]


def one_after_another(prompts: Sequence[int], *, output: int = 1) -> list[Request]:
    """Each prompt arrives when the one before is answered."""
    return [
        Request(name=f"r{i}", prompt=p, output=output, after=f"r{i - 1}" if i else None)
        for i, p in enumerate(prompts)
    ]


def read_trace(path: Path | str) -> list[Request]:
    """Requests of a trace file, by arrival. Raises InputError with the line number."""
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); give a JSON Lines file") from None
    requests = [_parse(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not requests:
        raise InputError(f"{path}: no request in it; give one JSON object a line")
    return sorted(requests, key=lambda r: r.arrival)


def _parse(path: Path, number: int, line: str) -> Request:
    where = f"{path}:{number}"
    try:
        record: Any = json.loads(line)
        if not isinstance(record, dict):
            raise ValueError("not an object")
        numbers = {
            key: _whole(record, key, default)
            for key, default in (
                ("timestamp", 0),
                ("input_length", None),
                ("output_length", 1),
                ("cached_tokens", 0),
                ("priority", 0),
            )
        }
        return Request(
            name=f"r{number}",
            prompt=numbers["input_length"],
            output=max(numbers["output_length"], 1),
            arrival=numbers["timestamp"] / 1000,
            cached=min(numbers["cached_tokens"], numbers["input_length"] - 1),
            priority=numbers["priority"],
        )
    except ValueError as error:  # JSON's own and ours
        raise InputError(
            f"{where}: {error}; each line must be an object with whole numbers timestamp (ms),"
            " input_length and output_length; correct or remove the line"
        ) from None


def _whole(record: dict[str, Any], key: str, default: int | None) -> int:
    value = record.get(key, default)
    if value is None:
        raise ValueError(f"{key} is missing")
    if isinstance(value, float) and key == "timestamp":
        value = round(value)
    if not isinstance(value, int) or isinstance(value, bool) or (value < 0 and key != "priority"):
        raise ValueError(f"{key}={value!r} is not a whole number of at least 0")
    return value
