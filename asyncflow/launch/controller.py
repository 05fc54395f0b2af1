"""The controller's process: the queue's state machine, told about this run, with the recorder as its observer.

With a journal it is started again when it was killed, in the same folder: it is then what it was, at the same address, and its record goes on.
"""

from __future__ import annotations

import signal
import sys
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from asyncflow.config import RunConfig
from asyncflow.flow.core import core_config
from asyncflow.launch.plan import device_count
from asyncflow.observe.recorder import Recorder, Standing
from asyncflow.observe.records import JOURNAL
from asyncflow.observe.stall import now_doing, stall_sink
from transfer_queue.controller import server
from transfer_queue.controller.core import Core
from transfer_queue.journal import serving
from transfer_queue.journal.logs import sources
from transfer_queue.journal.settings import JournalSettings
from transfer_queue.security import Security

RECORDED = "recorded.json"  # file of the journal's folder: how far the recorder was at the last snapshot
REPLAY_S = 1.0  # processor time, at most about, in which a controller is back out of its journal

sources()  # taken, and kept, where the fork server imports this: every start runs what was loaded then, whatever is edited meanwhile


def run(config: bytes, out: Connection | None) -> int:
    """Process entry: serve until the run has stopped and everybody left. Sends the endpoint through `out` when it listens; None: it is known."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # unwinds, so that the logs are whole
    settings = RunConfig.decode(config)
    security = Security.load(Path(settings.queue.key_file)) if settings.queue.key_file is not None else None
    folder = settings.run_dir / JOURNAL
    serve = server.serve
    if settings.queue.journal:
        folder.mkdir(mode=0o700, exist_ok=True)
        serve = partial(serving.serve, journal=JournalSettings(str(folder), replay_s=REPLAY_S))
    with Recorder(settings.run_dir, device_count(settings), folder / RECORDED if settings.queue.journal else None) as recorder:

        def attach(core: Core) -> None:
            recorder.standing = lambda topic: standing(core, topic)
            core.send_traces_to(recorder.on_trace)
            core.send_stall_to(stall_sink(settings.run_dir), now_doing(settings.run_dir))

        serve(
            core_config(settings),
            lambda: recorder,
            bind=settings.queue.bind,
            security=security,
            ready=lambda endpoint: None if out is None else out.send_bytes(endpoint.encode()),
            grace_s=settings.limits.drain_s + 10.0,  # the launcher ends us before that; this is for a launcher that died
            attach=attach,
        )
    return 0


def standing(core: Core, topic: str) -> Standing:
    """What the recorder writes down of the controller's state at a commit."""
    status = next(entry for entry in core.status().topics if entry.name == topic)
    return Standing(
        topic=status,
        roles={member.owner: member.role for member in core.members},
        clocks={member.owner: member.busy for member in core.members if member.busy},
    )
