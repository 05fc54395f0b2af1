"""Where the picture stands in a terminal: always in the same place, also when the window is made narrower, and still there when the view ends."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType, Segment

MARGIN_CELLS = 4  # a terminal echoes ^C behind the picture: in a full line it would begin another row, and the picture would lose its place


class Rendered:
    """Lines that are ready; rendering is most of a frame's cost, so it is done once."""

    def __init__(self, lines: list[list[Segment]]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self._lines:
            yield from line
            yield Segment.line()


class Canvas:
    """A context manager. What is printed to its console meanwhile appears above the picture."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._width = console.width
        self._lengths: list[int] = []  # cells of each line of the picture that is there

    @property
    def room(self) -> int:
        """Cells of a line."""
        return self._console.width - MARGIN_CELLS

    def show(self, picture: RenderableType) -> None:
        """In place of the one before, in one write."""
        width = self._console.width
        if width < self._width:
            self._take_back(width)
        lines = [trimmed(line) for line in self._console.render_lines(picture, self._console.options.update_width(self.room))]
        self._width, self._lengths = width, [Segment.get_line_length(line) for line in lines]
        self._live.update(Rendered(lines), refresh=True)

    def _take_back(self, width: int) -> None:
        """A window that gets narrower folds long lines into several rows, which rich does not know of: erase what is more than the picture had."""
        folds = sum(max(0, -(-length // width) - 1) for length in self._lengths)
        for _ in range(folds):
            self._console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)))

    def __enter__(self) -> Canvas:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()


def trimmed(line: list[Segment]) -> list[Segment]:
    """Without the empty cells at its end, so that it is not folded for their sake."""
    kept = list(line)
    while kept and not kept[-1].text.rstrip():
        kept.pop()
    if kept:
        kept[-1] = Segment(kept[-1].text.rstrip(), kept[-1].style)
    return kept
