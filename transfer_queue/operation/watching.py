"""`status --watch`: the same report again and again, until Ctrl-C or the end of the run."""

from __future__ import annotations

import sys
from collections.abc import Callable

from transfer_queue.errors import QueueGone
from transfer_queue.operation.probe import Probe
from transfer_queue.operation.report import QueueReport

LEAST_S, MOST_S = 0.1, 3600.0  # between two looks: each costs the controller a walk through what is open
CLEAR = "\x1b[H\x1b[J"  # of a terminal: to the top, and nothing below

Show = Callable[[QueueReport], str]


def watch(probe: Probe, show: Show, every_s: float, timeout_s: float) -> int:
    """`every_s`: in [LEAST_S, MOST_S]. Exit code: 0 after Ctrl-C, or when the controller has gone after the run was stopped. Raises what `Probe.ask`
    raises otherwise."""
    stopped = False
    try:
        while True:
            try:
                report = probe.ask(timeout_s, waits=True)
            except QueueGone:
                if stopped:
                    return 0
                raise
            stopped = report.status.state == "stop"
            _print(show(report))
            probe.wait(every_s)
    except KeyboardInterrupt:
        return 0


def _print(text: str) -> None:
    print(f"{CLEAR}{text}" if sys.stdout.isatty() else text, flush=True)
