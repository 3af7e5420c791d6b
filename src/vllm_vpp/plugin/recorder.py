"""Writes what a process did, and when, to the trace folder; off unless asked for.

Owns the raw records; `core.trace` reads them back as a `Timeline`. Times are those of the host's
monotonic clock, which all processes of a machine share. Nothing of a prompt is ever written. A file
that has reached half the limit becomes the older one of two, in place of the one before, so that
the newest are always there. Beside the records lies one file that says what they were made on.
"""

import json
import os
from pathlib import Path
from typing import Any, TextIO

from vllm_vpp.core.trace import older
from vllm_vpp.machine import machine
from vllm_vpp.plugin.log import logger

__all__ = ["Recorder", "record_machine"]


class Recorder:
    """Appends records to `<folder>/<name>.jsonl`, or drops them where no folder is given.

    `limit`: bytes that the file and the older one beside it may take. A write that fails (disk
    full) stops the recording with one warning; serving goes on. While `on` is false, nothing is
    kept.
    """

    def __init__(self, folder: str | None, name: str, header: dict[str, Any], limit: int) -> None:
        self.on = True
        self._writes = folder is not None
        self._lines: list[str] = []
        self._header = json.dumps(header) + "\n"
        self._half = limit // 2
        if folder is None:
            return
        self._path = Path(folder) / f"{name}.jsonl"
        try:
            older(self._path).unlink(missing_ok=True)
            self._open()
        except OSError as error:
            self._stop(error)

    @property
    def enabled(self) -> bool:
        """Whether records are kept."""
        return self._writes and self.on

    def add(self, *record: Any) -> None:
        """Keep one record; a short list of a letter and numbers (see `core.trace`)."""
        if self.enabled:
            self._lines.append(json.dumps(record, separators=(",", ":")))

    def flush(self) -> None:
        """Write what was kept."""
        if not self._writes or not self._lines:
            return
        text = "\n".join(self._lines) + "\n"
        self._lines.clear()
        try:
            if len(self._header) < self._size and self._size + len(text) > self._half:
                self._file.close()
                self._path.replace(older(self._path))
                self._open()
            self._write(text)
        except OSError as error:
            self._stop(error)

    def close(self) -> None:
        """Write what was kept; nothing more is recorded."""
        self.flush()
        if self._writes:
            self._file.close()
        self._writes = False

    def _open(self) -> None:
        self._file, self._size = _private(self._path), 0
        self._write(self._header)

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()
        self._size += len(text)

    def _stop(self, error: OSError) -> None:
        self._writes = False
        logger.warning("vpp: recording stops, serving goes on: %s", error)


def _private(path: Path) -> TextIO:
    """A new file for its owner alone; an earlier one, perhaps open to others, is taken over."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    handle = os.open(path, flags, 0o600)
    os.fchmod(handle, 0o600)
    return os.fdopen(handle, "w", encoding="ascii")


def record_machine(folder: str | None, device: str) -> None:
    """Write hardware and versions to `<folder>/machine.json`; nothing where no folder is given."""
    if folder is None:
        return
    text = json.dumps(machine() | {"device": device}, indent=1)
    try:
        with _private(Path(folder) / "machine.json") as file:
            file.write(text + "\n")
    except OSError as error:
        logger.warning("vpp: hardware and versions are not recorded: %s", error)
