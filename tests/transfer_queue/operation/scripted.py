"""A scripted run over two topics, every number of which is known by hand: `critic` is over, `policy` is in the middle of things.

What happens in `policy` (batch 2, staleness 1: a window of 4 groups; 2 rows a group; 4 groups to be trained):
groups 0 and 1 are finished; 2 is dropped as "too_long", and what its producer puts afterwards is late; 3 is handed out to a producer that dies.
Of the four rows two are scored and two lie with reward-0; reward-1 asks in vain; the trainer has group 0 in its batch. It has put two notes, tags
without columns, into the keyed partition `notes`.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
import queue_run
from prometheus_client.parser import text_string_to_metric_families

from transfer_queue.client import Pending, QueueClient
from transfer_queue.columns import Jagged
from transfer_queue.errors import QueueError
from transfer_queue.keyed import KeyedClient
from transfer_queue.local import LocalQueue
from transfer_queue.messages import GroupLease, ModelVersion, OkTaken, Replay

POLICY, CRITIC = queue_run.TOPIC, "critic"
SOON_S = 5.0
ROLES = {
    "source-0": "source",
    "rollout-0": "rollout",
    "rollout-1": "rollout",
    "reward-0": "scorer",
    "reward-1": "scorer",
    "trainer-0": "trainer",
    "publisher-0": "publisher",
}

Sample = tuple[str, tuple[tuple[str, str], ...]]


@dataclass
class Scripted:
    queue: LocalQueue
    members: dict[str, QueueClient]
    parked: Pending[OkTaken]  # of reward-1

    @property
    def stored_bytes(self) -> int:
        """What the shards hold of `policy` now: prompts of the groups that are open, rows of 0 and 1, two scores."""
        prompts = sum(4 * len(queue_run.prompt(gid)) + len(b"item %d" % gid) for gid in (0, 1, 3))
        tokens = sum(len(queue_run.response(gid, row)) for gid in (0, 1) for row in (0, 1))
        return prompts + tokens * (4 + 4) + 2 * 8


@contextmanager
def scripted() -> Iterator[Scripted]:
    spec = queue_run.spec(batch=2, staleness=1)
    reward, trainer = spec.consumers
    trainer = msgspec.structs.replace(trainer, replay=Replay(groups=1, keep_groups=2))
    critic = msgspec.structs.replace(spec, name=CRITIC, model=CRITIC, consumers=(reward, trainer))
    with LocalQueue([queue_run.spec(batch=2), critic], shards=2, heartbeat_s=300.0) as queue, ExitStack() as stack:
        members = {name: stack.enter_context(queue.client(name, role)) for name, role in ROLES.items()}
        train_critic(members)
        begin_policy(members)
        with KeyedClient(queue.url, None, members["trainer-0"].registration, SOON_S) as notes:
            notes.put("notes", ["first", "second"], tags=[{"step": 0}, None])
        parked = members["reward-1"].take(POLICY, "reward", limit=1)
        members["reward-1"].status().result(SOON_S)  # answered after the take before it was parked
        yield Scripted(queue, members, parked)


def train_critic(members: dict[str, QueueClient]) -> None:
    rollout, trainer = members["rollout-0"], members["trainer-0"]
    put_prompts(members["source-0"], CRITIC, 2, target=2)
    finish(rollout, CRITIC, rollout.pull(CRITIC, loaded=0, limit=2).result(SOON_S).groups)
    score(members["reward-0"], CRITIC, 4)
    batch = trainer.take(CRITIC, "trainer", limit=2, step=0).result(SOON_S)
    trainer.commit(CRITIC, "trainer", CRITIC, 0, 0, [batch.lease]).result(SOON_S)
    members["publisher-0"].published(ModelVersion(CRITIC, 0, 1)).result(SOON_S)


def begin_policy(members: dict[str, QueueClient]) -> None:
    rollout, reward = members["rollout-0"], members["reward-0"]
    put_prompts(members["source-0"], POLICY, 4, target=4)
    first, second, third = rollout.pull(POLICY, loaded=0, limit=3).result(SOON_S).groups
    finish(rollout, POLICY, [first, second])
    rollout.drop_groups(POLICY, [third.gid], "too_long").result(SOON_S)
    assert finish(rollout, POLICY, [third]) == [third.gid]
    members["rollout-1"].pull(POLICY, loaded=0, limit=1).result(SOON_S)
    rollout.member_dead("rollout-1", "killed").result(SOON_S)
    score(reward, POLICY, 2)
    assert len(reward.take(POLICY, "reward", limit=4).result(SOON_S).rows) == 2
    assert len(members["trainer-0"].take(POLICY, "trainer", limit=1, step=0).result(SOON_S).rows) == 2
    with pytest.raises(QueueError, match="unknown_topic"):
        reward.take("polcy", "reward", limit=1).result(SOON_S)


def put_prompts(source: QueueClient, topic: str, count: int, target: int) -> None:
    gids = range(count)
    columns = {"prompt_ids": Jagged.of([queue_run.prompt(gid) for gid in gids], "int32"), "item": [b"item %d" % gid for gid in gids]}
    source.put_prompts(topic, list(gids), columns, cursor=count)
    source.close_prompts(topic, target).result(SOON_S)


def finish(rollout: QueueClient, topic: str, leases: list[GroupLease]) -> list[int]:
    """Returns the gids that came too late."""
    rows = [queue_run.row_put(lease, row, 0) for lease in leases for row in lease.rows]
    columns = {
        "response_ids": Jagged.of([queue_run.response(put.gid, put.row) for put in rows], "int32"),
        "logprobs": Jagged.of([-np.ones(put.tokens) for put in rows], "float32"),
    }
    return rollout.put_rows(topic, rows, {lease.gid: len(lease.rows) for lease in leases}, columns).closed


def score(reward: QueueClient, topic: str, count: int) -> None:
    taken = reward.take(topic, "reward", limit=count).result(SOON_S)
    assert len(taken.rows) == count
    reward.write_back(topic, "reward", taken.lease, taken.rows.keys(), {"reward": np.zeros(count)})


def scrape(url: str) -> dict[Sample, float]:
    """As Prometheus sees it, by the client library's own parser."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in text_string_to_metric_families(text) for s in family.samples}


def metric(name: str, **labels: str) -> Sample:
    return f"transfer_queue_{name}", tuple(sorted(labels.items()))
