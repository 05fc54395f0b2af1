"""A terminal in memory (pyte) with a rich console writing into it, write by write, as a real one gets it."""

from __future__ import annotations

import io
from collections.abc import Callable

import pyte
from rich.console import Console


class Terminal(io.TextIOBase):
    """A file that draws what is written to it. `watch` sees the screen after every single write."""

    def __init__(self, width: int, height: int, watch: Callable[[list[str]], None] = lambda rows: None, encoding: str = "utf-8") -> None:
        self.screen = pyte.HistoryScreen(width, height, history=1000)
        self._stream = pyte.Stream(self.screen)
        self._watch = watch
        self._encoding = encoding
        self.text = ""  # everything that was written

    @property
    def encoding(self) -> str:
        return self._encoding

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        text.encode(self._encoding)  # what the terminal cannot show would end the program
        self.text += text
        self._stream.feed(text.replace("\n", "\r\n"))  # as the terminal driver does
        self._watch(self.rows)
        return len(text)

    def screen_feed(self, text: str) -> None:
        """What a program wrote, as it comes out of a terminal driver."""
        self.text += text
        self._stream.feed(text)
        self._watch(self.rows)

    @property
    def rows(self) -> list[str]:
        """The screen as a person sees it, without what is empty at the ends."""
        rows = [row.rstrip() for row in self.screen.display]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    def console(self, **options: object) -> Console:
        """As `asyncflow train` makes it."""
        settings = {"highlight": False, "soft_wrap": True, "width": self.screen.columns, "height": self.screen.lines} | options
        return Console(file=self, force_terminal=True, **settings)  # type: ignore[arg-type]
