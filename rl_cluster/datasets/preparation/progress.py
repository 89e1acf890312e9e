"""How far a preparation is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

_LINE_EVERY_S = 15.0


class PreparationProgress:
    """Context manager. Files are measured in bytes (or rows, for Parquet); documents are counted with their rate."""

    def __init__(self, console: Console):
        self.console = console
        self.documents = 0
        self._clock = console.get_time
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._file, self._bar = "", TaskID(0)
        self._started, self._counted_before, self._printed = self._clock(), 0, self._clock()

    def __enter__(self) -> PreparationProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        """One line above the bars."""
        self._bars.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def reading(self, file: str, done: int, of: int) -> None:
        """`done` of `of` bytes of a file are read."""
        now = self._clock()
        if file != self._file:
            if self._file:
                self._bars.remove_task(self._bar)
            self._file, self._bar = file, self._bars.add_task(file, total=max(of, 1), rate="")
            self._started, self._counted_before = now, self.documents
        seconds = max(now - self._started, 1e-6)
        counted = self.documents - self._counted_before
        rate = f"{self.documents:,} documents, {counted / seconds:,.0f}/s" if counted else ""
        self._bars.update(self._bar, completed=done, rate=rate)
        if not self.console.is_terminal and now - self._printed > _LINE_EVERY_S:
            self._printed = now
            left = seconds * (of - done) / max(done, 1)
            self.say(f"{file}: {done / max(of, 1):.0%}{', ' if rate else ''}{rate}, {left:.0f} s left")
