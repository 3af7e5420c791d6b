"""A progress bar for measurements: how far, how long, and the latest news."""

import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Progress"]


class Progress:
    """Call it with each piece of news. `steps` is the number of pieces expected, if known.

    Where the output is no terminal, each piece of news is a line.
    """

    def __init__(self, console: "Console", doing: str, steps: int | None = None) -> None:
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            TextColumn("{task.percentage:>3.0f}%"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("to go:"),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=console,
        )
        self._task = self._bar.add_task(doing, total=steps)
        self._plain = not console.is_terminal
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        if not self._plain:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._plain:
            self._bar.stop()

    def __call__(self, text: str) -> None:
        """Take one piece of news."""
        self._bar.update(self._task, description=text, advance=1)
        if self._plain:
            print(f"[{time.monotonic() - self._began:5.0f} s] {text}", flush=True)
