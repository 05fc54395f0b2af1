"""A line a worker: what it does now, how it spent its last seconds, how often it was restarted; a line a role where there is no room for that."""

from __future__ import annotations

from collections import Counter

from rich.table import Table
from rich.text import Text

from asyncflow.observe.live.marks import Marks, share_bar
from asyncflow.observe.live.snapshot import Snapshot, WorkerNow
from asyncflow.observe.shares import ACTIVITIES

DOES: dict[str, str] = {  # phase → what a person calls it; a phase that is not here calls itself
    "idle": "waits",
    "read": "reads rows",
    "compute": "computes",
    "put": "writes rows",
    "commit": "commits",
    "publish": "publishes weights",
    "load": "loads weights",
    "receive": "receives weights",
    "evaluate": "evaluates",
    "export": "exports weights",
}
BAR_CELLS = 20
ROOMY = 72  # columns from which on there is room between two columns
WIDE = 96  # columns from which on there is room for the bar


def worker_table(snapshot: Snapshot, width: int, rows: int) -> Table:
    """At most about `rows` lines."""
    table = Table.grid(padding=(0, 2 if width >= ROOMY else 1, 0, 0))
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=max(16, width // 4))
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    if width >= WIDE:
        table.add_column(no_wrap=True, width=BAR_CELLS)
    for _ in ACTIVITIES:
        table.add_column(no_wrap=True, justify="right", min_width=6)
    table.add_column(no_wrap=True, justify="right", min_width=8)
    table.expand = True
    bar = [Text("last 10 s" if snapshot.ended is None else "whole run")] if width >= WIDE else []
    table.add_row("worker", "does now", *bar, *ACTIVITIES, "restarts", style="bright_black")
    for cells in _lines(snapshot, rows - 1, width >= WIDE):
        table.add_row(*cells)
    return table


def _lines(snapshot: Snapshot, rows: int, wide: bool) -> list[list[Text]]:
    workers, ended = snapshot.workers, snapshot.ended is not None
    if len(workers) <= rows:
        return [[Text(worker.name), does(worker, ended), *_spent([worker], snapshot.marks, wide)] for worker in workers]
    roles = list(dict.fromkeys(worker.role for worker in workers))
    lines = []
    for role in roles:
        of_role = [worker for worker in workers if worker.role == role]
        counts = Counter(does(worker, ended).plain for worker in of_role)
        now = ", ".join(f"{count} {text}" for text, count in counts.most_common()) if len(of_role) > 1 else next(iter(counts))
        lines.append([Text(f"{role} ×{len(of_role)}" if len(of_role) > 1 else of_role[0].name), Text(now), *_spent(of_role, snapshot.marks, wide)])
    return lines


def _spent(workers: list[WorkerNow], marks: Marks, wide: bool) -> list[Text]:
    """Bar, a share for each activity, restarts."""
    known = [worker.shares for worker in workers if worker.shares is not None]
    restarts = sum(worker.restarts for worker in workers)
    end = Text(str(restarts), style="yellow") if restarts else Text("0", style="bright_black")
    if not known:
        return [*([Text("")] if wide else []), *(Text("?", style="bright_black") for _ in ACTIVITIES), end]
    mean = {activity: sum(shares.get(activity, 0.0) for shares in known) / len(known) for activity in ACTIVITIES}
    bar = [share_bar(mean, BAR_CELLS, marks)] if wide else []
    return [*bar, *(Text(f"{mean[activity]:.0%}") for activity in ACTIVITIES), end]


def does(worker: WorkerNow, ended: bool) -> Text:
    """The main thread in words, then what its other threads do beside it."""
    if not worker.joined:
        return Text("never started" if ended else "starts", style="bright_black")
    if worker.left is not None:
        return Text("left", style="bright_black") if worker.left == "left" else Text(f"is gone: {worker.left}", style="red")
    main: str = worker.phases.get("main", "idle")
    said = "waits for rows" if main == "idle" and worker.waits_for_rows else DOES.get(main, main)
    beside = [DOES.get(phase, phase) for thread, phase in worker.phases.items() if thread != "main" and phase != "idle"]
    return Text.assemble((said, "bright_black" if main == "idle" else ""), *(f" + {other}" for other in beside))
