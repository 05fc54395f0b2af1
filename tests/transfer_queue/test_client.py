"""Members on a real controller and real shards: whole runs, races, deaths, retries and deadlines."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import threading
import time
from collections import Counter

import numpy as np
import pytest
import queue_run as run
import torch
import zmq

from transfer_queue import keys
from transfer_queue import messages as m
from transfer_queue.__main__ import main
from transfer_queue.client import QueueClient
from transfer_queue.codec import to_torch
from transfer_queue.columns import Jagged
from transfer_queue.errors import QueueError, QueueGone, QueueRefused, QueueTimeout
from transfer_queue.local import LocalQueue
from transfer_queue.wire import decode_request, encode

INPUTS = ["prompt_ids", "response_ids", "logprobs", "reward"]


class Members:
    """A source, rollouts, reward workers and a trainer, each in a thread; the first exception is raised by `join`."""

    def __init__(self, queue: LocalQueue, groups: int) -> None:
        self.queue, self.groups = queue, groups
        self.trained: Counter[int] = Counter()
        self.produced: Counter[str] = Counter()
        self.error: BaseException | None = None
        self.threads: list[threading.Thread] = []

    def start(self, name: str, loop) -> None:
        def body() -> None:
            try:
                with self.queue.client(name, name.rstrip("0123456789-")) as client:
                    loop(client)
            except BaseException as error:
                self.error = self.error or error

        thread = threading.Thread(target=body, name=name, daemon=True)
        self.threads.append(thread)
        thread.start()

    def join(self, deadline_s: float = 40.0) -> None:
        deadline = time.monotonic() + deadline_s
        while any(thread.is_alive() for thread in self.threads) and self.error is None and time.monotonic() < deadline:
            self.threads[0].join(0.05)
            self.threads.append(self.threads.pop(0))
        if self.error is not None:
            raise self.error
        assert not any(thread.is_alive() for thread in self.threads), self.queue.status()

    def source(self, client: QueueClient) -> None:
        client.close_prompts(run.TOPIC, self.groups).result(5.0)
        while not (demand := client.demand(run.TOPIC, wait_s=5.0).result(10.0)).done:
            if demand.wanted:
                run.put_prompts(client, range(demand.cursor, demand.cursor + demand.wanted))

    def rollout(self, client: QueueClient) -> None:
        while True:
            version = run.clock(client)
            pulled = client.pull(run.TOPIC, loaded=version, limit=3, wait_s=0.2).result(10.0)
            if pulled.done:
                return
            if pulled.groups:
                prompts = client.read_shared(pulled.groups, ["prompt_ids", "item"], client.topic(run.TOPIC))
                assert [ids.tolist() for ids in prompts["prompt_ids"]] == [run.prompt(lease.gid) for lease in pulled.groups]
                assert prompts["item"] == [b"item %d" % lease.gid for lease in pulled.groups]
                run.put_groups(client, pulled.groups, version)
                self.produced[client.member] += len(pulled.groups)

    def reward(self, client: QueueClient) -> None:
        while not (taken := client.take(run.TOPIC, "reward", limit=5, wait_s=5.0).result(10.0)).done:
            if taken.lease < 0:
                continue
            got = client.read(taken.rows, ["prompt_ids", "item", "response_ids"], client.topic(run.TOPIC))
            assert [ids.tolist() for ids in got["response_ids"]] == [run.response(ref.gid, ref.row) for ref in taken.rows]
            rewards = np.array([run.reward(int(ids[0]), int(ids[1])) for ids in got["response_ids"]])
            client.write_back(run.TOPIC, "reward", taken.lease, [(ref.gid, ref.row) for ref in taken.rows], {"reward": rewards})

    def trainer(self, client: QueueClient) -> None:
        step, done = 0, False
        while not done:
            leases, groups, batch = [], set(), 1
            while len(groups) < batch:
                taken = client.take(run.TOPIC, "trainer", limit=2, step=step, wait_s=5.0).result(10.0)
                if taken.lease < 0:
                    continue
                batch = taken.batch
                leases.append(taken.lease)
                groups |= {ref.gid for ref in taken.rows}
                got = client.read(taken.rows, INPUTS, client.topic(run.TOPIC))
                assert got["reward"].tolist() == [run.reward(ref.gid, ref.row) for ref in taken.rows]
                assert [ids.tolist() for ids in got["prompt_ids"]] == [run.prompt(ref.gid) for ref in taken.rows]
                assert (got["logprobs"].values == -1).all()
                assert all(step - ref.oldest_version <= 1 for ref in taken.rows)
            self.trained.update(groups)
            committed = client.commit(run.TOPIC, "trainer", "policy", 0, step, leases).result(5.0)
            step, done = committed.version, committed.done


@pytest.mark.parametrize("secured", [False, True])
def test_two_producers_and_two_consumers_train_every_group_once_and_leave_the_shards_empty(secured):
    security = keys.make() if secured else None
    with LocalQueue([run.spec()], shards=2, security=security) as queue:
        members = Members(queue, groups=22)  # the last batch is short
        for name in ("source-0", "rollout-0", "rollout-1", "reward-0", "reward-1", "trainer-0"):
            members.start(name, getattr(members, name.rstrip("0123456789-")))
        members.join()
        assert len(members.trained) == 22
        assert set(members.trained.values()) == {1}
        with queue.client("observer") as observer:
            assert run.comes_to_use(observer, 0)
        ledger = queue.status().topics[0].ledger
        assert ledger["trained"] == 22


def test_a_pull_that_is_cancelled_in_a_race_with_its_grant_loses_nothing_and_is_answered_once():
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with LocalQueue([run.spec(staleness=None)]) as queue, queue.client("source-0") as source, queue.client("rollout-0") as rollout:
        granted: list[int] = []
        put = 0
        while len(granted) < 100:
            pending = rollout.pull(run.TOPIC, loaded=0, limit=rng.randint(1, 3), wait_s=5.0)
            if put < 100 and rng.random() < 0.7:
                run.put_prompts(source, range(put, put + 1))
                put += 1
            if rng.random() < 0.5:
                rollout.poll(rng.random() * 0.002)
            pending.cancel()
            granted += [lease.gid for lease in pending.result(5.0).groups]
        assert sorted(granted) == list(range(100))
        assert rollout.poll(0.0) == set()  # no second reply came for any of them


def test_a_consumer_that_dies_under_a_lease_loses_it_to_the_next_one():
    with LocalQueue([run.spec()]) as queue, queue.client("source-0") as source, queue.client("rollout-0") as rollout, queue.client("r-0") as dead:
        run.put_prompts(source, range(2))
        run.put_groups(rollout, rollout.pull(run.TOPIC, loaded=0, limit=2).result(5.0).groups, 0)
        first = dead.take(run.TOPIC, "reward", limit=4, at_least=4).result(5.0)
        with queue.client("r-1") as other:
            waiting = other.take(run.TOPIC, "reward", limit=4, wait_s=5.0)
            assert waiting not in other.poll(0.1)
            source.member_dead("r-0", "killed by the test").result(5.0)
            second = waiting.result(5.0)
            assert [(ref.gid, ref.row) for ref in second.rows] == [(ref.gid, ref.row) for ref in first.rows]
            with pytest.raises(QueueError) as refused:
                dead.release(run.TOPIC, "reward", first.lease).result(5.0)
            assert refused.value.code == "stale_incarnation"
        with queue.client("r-1") as restarted:  # it closed without a word: the new incarnation gets what the old one held
            assert restarted.incarnation == 1
            third = restarted.take(run.TOPIC, "reward", limit=4, wait_s=5.0).result(5.0)
            assert len(third.rows) == 4


def test_rows_that_are_put_again_are_refused_and_what_was_stored_stays_readable():
    with LocalQueue([run.spec()]) as queue, queue.client("source-0") as source, queue.client("rollout-0") as rollout:
        run.put_prompts(source, range(1))
        leases = rollout.pull(run.TOPIC, loaded=0, limit=1).result(5.0).groups
        assert run.put_groups(rollout, leases, 0) == []
        stored = run.used_bytes(rollout)
        assert run.put_groups(rollout, leases, 0) == [0]  # as after a QueueTimeout whose request had arrived
        assert run.comes_to_use(rollout, stored)
        taken = rollout.take(run.TOPIC, "reward", limit=4).result(5.0)
        assert len(rollout.read(taken.rows, ["prompt_ids", "item", "response_ids"], run.spec())["response_ids"]) == 2


def test_prompts_that_found_no_room_leave_no_bytes_behind_and_may_be_put_again():
    import msgspec

    small = msgspec.structs.replace(run.spec(), prompts_bound=4)
    with LocalQueue([small]) as queue, queue.client("source-0") as source:
        assert run.put_prompts(source, range(4)) == 4
        stored = run.used_bytes(source)
        assert run.put_prompts(source, range(4, 6), wait_s=0.05) == 4
        assert run.comes_to_use(source, stored)
        with queue.client("rollout-0") as rollout:
            rollout.pull(run.TOPIC, loaded=0, limit=2).result(5.0)
        assert run.put_prompts(source, range(4, 6)) == 6


def test_a_refused_request_frees_the_bytes_it_came_with(queue):
    with queue.client("refused") as client:
        row = m.RowPut(gid=0, fence=0, row=0, columns={}, tokens=1, oldest_version=0, newest_version=0)
        with pytest.raises(QueueError) as refused:
            client.put_rows(run.TOPIC, [row], columns={"response_ids": Jagged.of([[1]], "int32")})  # logprobs are missing
        assert refused.value.code == "bad_request"
        assert run.comes_to_use(client, 0, client.owner)


def test_bytes_of_a_write_that_was_given_up_are_freed_when_its_answer_comes_late(queue):
    with queue.client("hasty") as client:
        client.shard_status()  # connected to all
        client.timeout_s = 0.0
        with contextlib.suppress(QueueTimeout):
            while True:  # until an answer comes too late
                client.discard(client.write([0], {"response_ids": Jagged.of([[1] * 10_000], "int32")})["response_ids"])
        client.timeout_s = 10.0
        assert run.comes_to_use(client, 0, client.owner)


def test_a_take_that_was_given_up_gives_the_lease_that_comes_late_back():
    with LocalQueue([run.spec()]) as queue, queue.client("source-0") as source, queue.client("rollout-0") as rollout, queue.client("r-0") as reward:
        run.put_prompts(source, range(1))
        run.put_groups(rollout, rollout.pull(run.TOPIC, loaded=0, limit=1).result(5.0).groups, 0)
        take = m.Take(topic=run.TOPIC, consumer="reward", member="", incarnation=0, limit=4, wait_s=30.0)
        with contextlib.suppress(QueueTimeout):
            while lease := reward.call(take, 0.0).lease + 1:  # until a grant comes too late
                reward.release(run.TOPIC, "reward", lease - 1).result(5.0)
        with queue.client("r-1") as other:
            waiting = other.take(run.TOPIC, "reward", limit=4, at_least=2, wait_s=5.0)  # before the silent holder is held for dead
            assert reward.poll(0.2) == set()  # takes the late lease in and gives it back, and tells of neither
            assert len(waiting.result(10.0).rows) == 2


def test_poll_tells_once_of_a_reply_that_came_while_another_was_awaited(queue):
    with queue.client("a") as client:
        pending = client.status()
        time.sleep(0.05)  # let the reply arrive, unread
        client.watch(wait_s=0.0).result(5.0)
        assert pending.done()
        started = time.monotonic()
        assert client.poll(5.0) == {pending}
        assert time.monotonic() - started < 1.0
        assert client.poll(0.0) == set()


def test_poll_wakes_for_descriptors_sockets_and_objects_with_fileno(queue):
    receive, send = os.pipe()
    with queue.client("a") as client, open(receive, "rb") as file, zmq.Context.instance().socket(zmq.PULL) as pull:
        port = pull.bind_to_random_port("tcp://127.0.0.1")
        assert client.poll(0.01, receive, pull) == set()
        os.write(send, b"x")
        assert client.poll(5.0, receive, pull) == {receive}
        assert client.poll(5.0, file, pull) == {file}
        os.read(receive, 1)
        with zmq.Context.instance().socket(zmq.PUSH) as push:
            push.connect(f"tcp://127.0.0.1:{port}")
            push.send(b"x")
            assert client.poll(5.0, receive, pull) == {pull}
    os.close(send)


def test_attach_is_the_same_member_on_a_connection_of_its_own(queue):
    with queue.client("a") as client:
        parked = client.watch(seen=10**9, wait_s=30.0)  # parks on its own connection only
        with client.attach() as second:
            assert (second.member, second.incarnation) == (client.member, client.incarnation)
            slices = second.write([0], {"response_ids": np.ones((1, 2), dtype="int32")})
        assert len(client.read([m.RowRef(0, 0, 0, 0, slices["response_ids"])], ["response_ids"], run.spec())["response_ids"]) == 1
        parked.cancel()
        parked.result(5.0)


def test_bfloat16_crosses_the_queue_bit_for_bit(queue):
    spec = m.TopicSpec(name="t", model="p", columns=(m.Column("h", "bfloat16", "per_token", "r"),), consumers=(), window=m.Window(1, None))
    tensor = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16).view(256, 256)  # every bit pattern
    with queue.client("a") as client:
        slices = client.write(range(256), {"h": tensor.t()}, spec)["h"]
        rows = [m.RowRef(gid, 0, 0, 0, [slices[gid]]) for gid in range(256)]
        got = to_torch(client.read(rows, ["h"], spec)["h"].values, "bfloat16")
        assert got.view(torch.uint16).tolist() == tensor.t().contiguous().view(torch.uint16).view(-1).tolist()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"response_ids": Jagged.of([[1]], "int64")}, "int32, got int64: bits travel unconverted"),
        ({"response_ids": np.ones(1, dtype="int32")}, "per_token, got scalar"),
        ({"respons_ids": np.ones(1, dtype="int32")}, "'respons_ids' is not in topic"),
        ({"reward": np.ones(2)}, "2 rows for 1 gids"),
    ],
)
def test_columns_that_break_the_schema_are_refused_before_a_byte_moves(queue, columns, message):
    with queue.client("strict") as client:
        with pytest.raises(ValueError, match=message):
            client.write([0], columns, run.spec())
        assert run.used_bytes(client, client.owner) == 0


def test_a_server_that_does_not_answer_is_named_at_the_deadline():
    with zmq.Context.instance().socket(zmq.ROUTER) as silent:
        url = f"tcp://127.0.0.1:{silent.bind_to_random_port('tcp://127.0.0.1')}"
        started = time.monotonic()
        with pytest.raises(QueueTimeout, match=rf"Register to the controller at {url}: no reply within 0.2 s"):
            QueueClient.connect(url, name="a", role="r", timeout_s=0.2)
        assert time.monotonic() - started < 2.0


def test_a_controller_that_ends_fails_what_waits_for_it_long_before_the_deadline():
    with zmq.Context.instance().socket(zmq.ROUTER) as server:
        server.linger = 0
        url = f"tcp://127.0.0.1:{server.bind_to_random_port('tcp://127.0.0.1')}"
        with QueueClient.outsider(url) as client:
            pending = client.demand("t", wait_s=60.0)
            assert server.poll(5000)
            server.close()
            started = time.monotonic()
            with pytest.raises(QueueGone, match=f"the controller at {url} closed the connection"):
                pending.result(60.0)
            assert time.monotonic() - started < 10.0


def test_replies_that_were_due_on_a_connection_that_broke_fail_when_it_comes_back_and_later_requests_do_not():
    context = zmq.Context.instance()
    first = context.socket(zmq.ROUTER)
    url = f"tcp://127.0.0.1:{first.bind_to_random_port('tcp://127.0.0.1')}"
    with QueueClient.outsider(url) as client, context.socket(zmq.ROUTER) as second:
        before = client.demand("t", wait_s=60.0)
        assert first.poll(5000)
        first.close(linger=0)
        client.poll(0.05)  # the loss is noticed
        second.linger = 0
        second.bind(url)
        after = client.demand("t", wait_s=60.0)
        with pytest.raises(QueueGone, match="ask again"):
            before.result(10.0)
        assert second.poll(5000)
        connection, frame = second.recv_multipart()
        assert decode_request(frame).id == after.id
        second.send_multipart([connection, encode(m.OkDemand(id=after.id, wanted=3, cursor=0, done=False))])
        assert after.result(5.0).wanted == 3


def test_closed_clients_leave_no_descriptor_behind(queue):
    def use() -> None:
        with queue.client("passing") as client, client.attach() as second:
            client.shard_status()
            second.shard_status()

    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    use()
    before = open_files()
    for _ in range(10):
        use()
    deadline = time.monotonic() + 5.0
    while open_files() > before and time.monotonic() < deadline:  # zmq closes in a thread of its own
        queue.status()
    assert open_files() <= before


def test_a_client_that_is_dropped_without_being_closed_closes_its_sockets_in_order():
    """The monitor's reader first, and zmq's thread would wait for it for ever: no other client of the process would get a reply any more."""
    with LocalQueue([run.spec()]) as queue:
        client = queue.client("w-0")
        link = client.controller
        sockets = link.socket, link.monitor
        del client, link
        gc.collect()
        assert [socket.closed for socket in sockets] == [True, True], "somebody else still holds them, so only the link's own end can have"


def test_clients_that_are_dropped_while_they_look_for_a_queue_that_ended_hang_nothing():
    for _ in range(6):
        with LocalQueue([run.spec()]) as queue:
            client = queue.client("w-0")
        del client
        gc.collect()


def test_a_worker_without_the_key_is_refused_and_told_so():
    with LocalQueue([run.spec()], security=keys.make()) as queue:
        for security in (None, keys.make().worker()):
            with pytest.raises((QueueRefused, QueueTimeout), match="key"):
                QueueClient.connect(queue.url, name="evil", role="rollout", security=security, timeout_s=1.0)
        assert "evil#0" not in queue.status().members


def test_the_status_command_prints_the_ledger_and_who_waits(capsys):
    with LocalQueue([run.spec()]) as queue, queue.client("source-0", "source") as source, queue.client("r-0", "reward") as reward:
        run.put_prompts(source, range(2))
        reward.take(run.TOPIC, "reward", limit=1, wait_s=30.0)
        reward.watch(wait_s=0.0).result(5.0)  # the take before it was read
        assert main(["status", "--controller", queue.url]) == 0
        text = capsys.readouterr().out
        assert "topic policy: version 0, 0 of ? groups trained" in text
        assert "2 prompts wait" in text
        assert "waiting: r-0" in text
    assert main(["status", "--controller", queue.url, "--timeout-s", "0.1"]) == 1
    assert queue.url in capsys.readouterr().err
