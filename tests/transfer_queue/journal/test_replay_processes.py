"""Replay with real bytes: a controller with a journal and two shards as processes, each of which is killed with -9 on the way; a save and a load."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import queue_run as run
from queue_processes import Process
from test_controller_command import controller

from transfer_queue import messages as m
from transfer_queue.client import QueueClient
from transfer_queue.local import LocalQueue
from transfer_queue.operation.settings_file import load as read_settings
from transfer_queue.saving.loader import load
from transfer_queue.saving.saver import save

WAIT_S = 30.0
FILE = """
comeback_s = 30.0
[[topics]]
name = "sums"
model = "m"
columns = [
  { name = "answer", dtype = "uint8", kind = "text", producer = "writer" },
  { name = "draft", dtype = "uint8", kind = "text", producer = "writer" },
]
window = { batch = 2, staleness = 3, group_bytes = 100 }
[[topics.consumers]]
name = "train"
inputs = ["answer"]
unit = "group"
terminal = true
replay = { groups = 2, keep_groups = 4 }
"""


def step(client: QueueClient, spec: m.TopicSpec, number: int) -> m.OkTaken:
    """Put a batch and take it: every byte that comes is what was put, what is replayed included."""
    answers = [f"{number} {at}" for at in range(2)]
    reply = client.put("sums", {"answer": answers, "draft": ["…"] * 2})
    assert reply.groups == [2 * number, 2 * number + 1]
    taken = client.take("sums", "train", limit=2, at_least=2, step=number).result(WAIT_S)
    assert client.read(taken.rows, ["answer"], spec)["answer"] == answers
    read_replayed(client, spec, taken)
    return taken


def read_replayed(client: QueueClient, spec: m.TopicSpec, taken: m.OkTaken) -> None:
    answers = client.read(taken.replayed.rows, ["answer"], spec)["answer"]
    assert answers == [f"{row.gid // 2} {row.gid % 2}" for row in taken.replayed.rows]


def replay(client: QueueClient) -> m.ReplayStatus:
    found = client.status().result(WAIT_S).status.topics[0].consumers[0].replay
    assert found is not None
    return found


def test_what_is_replayed_is_what_was_trained_whoever_was_killed_meanwhile(tmp_path: Path) -> None:
    file, folder = tmp_path / "queue.toml", tmp_path / "journal"
    file.write_text(FILE)
    with ExitStack() as stack:
        with controller(file, folder) as (_, url):
            shards = [stack.enter_context(Process("shard", url, f"shard-{index}")) for index in range(2)]
            assert all(shard.heard() for shard in shards)
            client = stack.enter_context(QueueClient.connect(url, name="me", role="trainer", timeout_s=WAIT_S))
            spec = client.topic("sums")
            first = step(client, spec, 0)
            assert len(first.replayed) == 0
            client.commit("sums", "train", "m", 0, 0, [first.lease]).result(WAIT_S)
            second = step(client, spec, 1)
            assert sorted(second.replayed.rows.keys()) == [(0, 0), (1, 0)]
        with controller(file, folder):
            read_replayed(client, spec, second)
            assert client.commit("sums", "train", "m", 0, 1, [second.lease]).result(WAIT_S).trained == 4
            told = replay(client)
            assert (told.kept, told.replayed, told.leased) == (4, 2, 0)
            shards[1].kill()
            client.member_dead("shard-1", "killed by the test").result(WAIT_S)
            lost = replay(client).lost
            assert 0 < lost < 4, "members write to one shard after the other"
            third = step(client, spec, 2)
            assert len(third.replayed) == min(2, 4 - lost)
            client.close_prompts("sums", 6).result(WAIT_S)
            assert client.commit("sums", "train", "m", 0, 2, [third.lease]).result(WAIT_S).done
            assert replay(client).kept == 0
            looker = stack.enter_context(QueueClient.connect(url, name="looker", role="looker", timeout_s=WAIT_S))  # knows the shards there are now
            assert run.comes_to_use(looker, 0)


def commit(client: QueueClient, number: int, taken: m.OkTaken) -> None:
    client.commit("sums", "train", "m", 0, number, [taken.lease]).result(WAIT_S)


def test_a_save_takes_the_bytes_along_that_are_to_be_replayed(tmp_path: Path) -> None:
    file = tmp_path / "queue.toml"
    file.write_text(FILE)
    topics = read_settings(file).topics
    with LocalQueue(topics, shards=2) as queue, queue.client("me") as client:
        for number in range(2):
            commit(client, number, step(client, topics[0], number))
        held = step(client, topics[0], 2)
        assert len(held.replayed) == 2
        save(queue.url, tmp_path / "saved")
        before = replay(client)
    with LocalQueue(topics, shards=1) as queue, queue.client("me") as client:
        load(queue.url, tmp_path / "saved")
        after = replay(client)
        assert (after.kept, after.replayed, after.leased, before.leased) == (before.kept, before.replayed, 0, 2) == (4, 2, 0, 2)
        assert after.kept_bytes < before.kept_bytes, "drafts lay in the blocks of answers, and nobody reads them"
        taken = client.take("sums", "train", limit=2, at_least=2, step=2).result(WAIT_S)
        assert taken.rows.keys() == held.rows.keys()
        read_replayed(client, topics[0], taken)
        client.close_prompts("sums", 6).result(WAIT_S)
        commit(client, 2, taken)
        assert run.comes_to_use(client, 0)
