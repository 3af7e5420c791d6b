"""Writes what a process did, and when, to one file of the trace folder; off unless asked for.

Owns the raw records; `core.trace` reads them back as a `Timeline`. Times are those of the host's
monotonic clock, which all processes of a machine share. Nothing of a prompt is ever written. Beside
the records lies one file that says what they were made on.
"""

import json
import os
from pathlib import Path
from typing import Any, TextIO

from vllm_vpp.machine import machine
from vllm_vpp.plugin.log import logger

__all__ = ["Recorder", "record_machine"]


class Recorder:
    """Appends records to `<folder>/<name>.jsonl`, or drops them where no folder is given.

    A write that fails (disk full) stops the recording with one warning; serving goes on.
    """

    def __init__(self, folder: str | None, name: str, header: dict[str, Any]) -> None:
        self.enabled = folder is not None
        self._lines: list[str] = []
        if folder is None:
            return
        path = Path(folder) / f"{name}.jsonl"
        try:
            self._file = _private(path)
        except OSError as error:
            self._stop(error)
            return
        self._lines.append(json.dumps(header))
        self.flush()

    def add(self, *record: Any) -> None:
        """Keep one record; a short list of a letter and numbers (see `core.trace`)."""
        if self.enabled:
            self._lines.append(json.dumps(record, separators=(",", ":")))

    def flush(self) -> None:
        """Write what was kept."""
        if not self.enabled or not self._lines:
            return
        try:
            self._file.write("\n".join(self._lines) + "\n")
            self._file.flush()
        except OSError as error:
            self._stop(error)
        self._lines.clear()

    def close(self) -> None:
        """Write what was kept; nothing more is recorded."""
        self.flush()
        if self.enabled:
            self._file.close()
        self.enabled = False

    def _stop(self, error: OSError) -> None:
        self.enabled = False
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
