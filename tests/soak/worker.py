"""A producer or a consumer as a process: `python -m tests.soak.worker SEAT LIFE URL RECORDS`, SEAT as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from tests.soak import consumers, producers
from tests.soak.records import Recorder
from tests.soak.settings import KEEP_BYTES, Kind, Seat
from tests.soak.work import REPLY_S, Worker, patient
from transfer_queue.client import QueueClient
from transfer_queue.operation.parent import end_with_stdin

JOBS: dict[Kind, Callable[[Worker], None]] = {
    "writer": producers.write,
    "source": producers.ask,
    "rollout": producers.roll,
    "grader": consumers.grade,
    "trainer": consumers.train,
}


def main(seat: Seat, life: int, url: str, records: Path) -> None:
    """Every second one reads and writes through sockets, the others through shared memory."""
    end_with_stdin()
    shared = seat.index % 2 == 0
    note = Recorder(records, seat.name, life)
    connect = partial(QueueClient.connect, name=seat.name, role=seat.kind, timeout_s=REPLY_S, map_memory=shared, keep_bytes=KEEP_BYTES)
    with patient(note, connect, url) as client:  # its controller may be on its way back
        JOBS[seat.kind](Worker(seat, life, client, client.topic(seat.topic), note))
        client.leave().result(REPLY_S)


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Seat), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
