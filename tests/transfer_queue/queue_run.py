"""A small topic and the members of a run on it, for the tests of client, shard and local queue."""

from __future__ import annotations

import time

import numpy as np

from transfer_queue.client import QueueClient
from transfer_queue.columns import Jagged
from transfer_queue.messages import Column, Consumer, GroupLease, RowPut, TopicSpec, Window

TOPIC = "policy"


def spec(batch: int = 4, staleness: int | None = 1, rows: int = 2) -> TopicSpec:
    return TopicSpec(
        name=TOPIC,
        model="policy",
        columns=(
            Column("prompt_ids", "int32", "per_token", "source", shared=True),
            Column("item", "uint8", "blob", "source", shared=True),
            Column("response_ids", "int32", "per_token", "rollout"),
            Column("logprobs", "float32", "per_token", "rollout"),
            Column("reward", "float64", "scalar", "reward"),
        ),
        consumers=(
            Consumer("reward", inputs=("prompt_ids", "item", "response_ids"), outputs=("reward",)),
            Consumer("trainer", inputs=("prompt_ids", "response_ids", "logprobs", "reward"), unit="group", terminal=True),
        ),
        window=Window(batch=batch, staleness=staleness),
        rows_per_group=rows,
    )


def prompt(gid: int) -> list[int]:
    return list(range(gid, gid + gid % 3 + 1))


def response(gid: int, row: int) -> list[int]:
    return [gid, row, *([7] * (gid % 5))]


def reward(gid: int, row: int) -> float:
    return gid + row / 8


def put_prompts(source: QueueClient, gids: range, wait_s: float = 5.0) -> int:
    """Returns the stored cursor."""
    columns = {"prompt_ids": Jagged.of([prompt(gid) for gid in gids], "int32"), "item": [b"item %d" % gid for gid in gids]}
    return source.put_prompts(TOPIC, list(gids), columns, cursor=gids.stop, wait_s=wait_s).cursor


def row_put(lease: GroupLease, row: int, version: int) -> RowPut:
    tokens = len(response(lease.gid, row))
    return RowPut(gid=lease.gid, fence=lease.fence, row=row, columns={}, tokens=tokens, oldest_version=version, newest_version=version)


def put_groups(rollout: QueueClient, leases: list[GroupLease], version: int) -> list[int]:
    """Finish whole groups; returns the refused gids."""
    rows = [row_put(lease, row, version) for lease in leases for row in lease.rows]
    columns = {
        "response_ids": Jagged.of([response(put.gid, put.row) for put in rows], "int32"),
        "logprobs": Jagged.of([-np.ones(put.tokens) for put in rows], "float32"),
    }
    return rollout.put_rows(TOPIC, rows, {lease.gid: max(lease.rows) + 1 for lease in leases}, columns).closed


def clock(client: QueueClient) -> int:
    """The committed version."""
    return client.watch(wait_s=0.0).result(5.0).directive.versions.get("policy", 0)


def used_bytes(client: QueueClient, owner: str | None = None) -> int:
    """Bytes on all shards, of one owner or of everybody."""
    return sum(status.used_bytes if owner is None else status.owners.get(owner, 0) for status in client.shard_status().values())


def comes_to_use(client: QueueClient, expected: int, owner: str | None = None, deadline_s: float = 5.0) -> bool:
    """Whether the shards come down to exactly `expected` bytes: the controller frees by messages of its own, which may be on their way."""
    deadline = time.monotonic() + deadline_s
    while used_bytes(client, owner) != expected:
        if time.monotonic() > deadline:
            return False
    return True


class Deadline:
    """For loops that wait for somebody else: fails by `check` when the time is over."""

    def __init__(self, seconds: float) -> None:
        self._over = time.monotonic() + seconds

    def check(self, what: str) -> None:
        assert time.monotonic() < self._over, what
