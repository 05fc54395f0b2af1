"""Writers put whole groups; a source puts prompts, of which rollouts make groups, row by row or all at once."""

from __future__ import annotations

from tests.soak import content
from tests.soak.content import ROWS, SHARED, Key
from tests.soak.records import Acknowledged, Prompted, Pulled, Tried, Wrong
from tests.soak.work import WAIT_S, Worker
from transfer_queue import messages as m
from transfer_queue.errors import Gone

MOST_GROUPS = 3  # of one put
MOST_PROMPTS = 16
MOST_PULLED = 2


def write(worker: Worker) -> None:
    """Until the topic is over. A put is named by its first serial number, so that a repeat of it stores nothing again."""
    serial, alone = 0, False
    while True:
        stored = _put(worker, serial, 1 if alone else 1 + serial % MOST_GROUPS)
        if stored.done:
            return
        alone = not stored.gids  # no room for so many: the last places of a topic are taken one by one
        if stored.gids:
            worker.note(Acknowledged(serial=serial, gids=stored.groups))
            serial += len(stored.groups)


def _put(worker: Worker, serial: int, groups: int) -> m.OkStored:
    common: list[Key] = [(worker.seat.index, worker.life, serial + group, SHARED) for group in range(groups)]
    keys: list[Key] = [(*key[:3], row) for key in common for row in range(ROWS)]
    columns = content.columns(keys) | content.prompts(common)
    worker.note(Tried(serial=serial, groups=groups))
    return worker.patient(worker.client.put, worker.topic, columns, rows_per_group=ROWS, wait_s=WAIT_S, token=serial)


def ask(worker: Worker) -> None:
    """The source: as many prompts as are wanted, from where the controller's cursor is, until the topic is over."""
    while True:
        demand = worker.ask(worker.client.demand, worker.topic, WAIT_S)
        if demand.done:
            return
        gids = range(demand.cursor, demand.cursor + min(demand.wanted, MOST_PROMPTS))
        if gids:
            worker.note(Prompted(first=gids.start, end=gids.stop))
            columns = content.prompts([_key(gid, SHARED) for gid in gids])
            worker.patient(worker.client.put_prompts, worker.topic, gids, columns, gids.stop, WAIT_S)


def roll(worker: Worker) -> None:
    while True:
        loaded = worker.clock()
        pulled = worker.ask(worker.client.pull, worker.topic, loaded, MOST_PULLED, WAIT_S)
        if pulled.done:
            return
        if pulled.groups:
            worker.note(Pulled(gids=[lease.gid for lease in pulled.groups]))
        for lease in pulled.groups:
            if _has_its_prompt(worker, lease):
                _make(worker, lease, loaded)


def _has_its_prompt(worker: Worker, lease: m.GroupLease) -> bool:
    """Not where the prompt's shard was lost: the controller drops the group."""
    try:
        found = worker.patient(worker.client.read_shared, [lease], ["prompt"], worker.spec)
    except Gone:
        return False
    if found["prompt"][0].tolist() != content.prompt(_key(lease.gid, SHARED)).tolist():
        worker.note(Wrong(what=f"{worker.topic}: the prompt of {lease.gid} is not what was put"))
    return True


def _make(worker: Worker, lease: m.GroupLease, loaded: int) -> None:
    """Every second group row by row, so that some are left half made when their rollout is killed."""
    parts = [[row] for row in lease.rows] if lease.gid % 2 else [lease.rows]
    for part in parts:
        columns = content.columns([_key(lease.gid, row) for row in part])
        lengths = columns["tokens"].lengths.tolist()
        rows = [m.RowPut(lease.gid, lease.fence, row, {}, tokens, loaded, loaded) for row, tokens in zip(part, lengths, strict=True)]
        worker.patient(worker.client.put_rows, worker.topic, rows, {lease.gid: ROWS} if part is parts[-1] else {}, columns)


def _key(gid: int, row: int) -> Key:
    return (-1, 0, gid, row)
