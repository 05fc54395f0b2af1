"""The terminal, or whatever stands in its place: what it can show, and what happens when nobody looks any more."""

from __future__ import annotations

import os
import sys

from rich.console import Console

LEAST_WIDTH, LEAST_HEIGHT = 60, 14  # of a terminal in which a picture can be read


class LastingConsole(Console):
    """Whoever reads our output may go (`| head`, a lost ssh line): then it goes nowhere, and the run goes on."""

    def on_broken_pipe(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def make_console() -> LastingConsole:
    return LastingConsole(highlight=False, soft_wrap=True)


def can_show_a_picture(console: Console) -> bool:
    """A terminal that can move its cursor, and large enough."""
    return console.is_terminal and not console.is_dumb_terminal and console.width >= LEAST_WIDTH and console.height >= LEAST_HEIGHT
