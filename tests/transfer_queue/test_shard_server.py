"""A shard answers everybody and is ended by nobody: malformed messages, floods of claims, full memory, freed bytes."""

from __future__ import annotations

import random
import subprocess
import sys
import time

import msgspec
import numpy as np
import pytest
import queue_run as run
import zmq

from transfer_queue import keys
from transfer_queue import messages as m
from transfer_queue.errors import Gone, QueueError, QueueGone
from transfer_queue.local import LocalQueue
from transfer_queue.shard import messages as sm
from transfer_queue.shard.server import serve
from transfer_queue.wire import decode_shard_reply, encode


def malformed(rng: random.Random) -> list[bytes]:
    """A message that no client of ours sends: noise, cut or flipped headers, wrong frames, absurd numbers."""
    header = bytearray(encode(rng.choice([
        sm.Write(id=rng.randrange(99), owner="evil#0", cuts=[[0, 4], [0, rng.choice([5, -5, 2**63 - 1])]]),
        sm.Write(id=rng.randrange(99), owner=rng.choice(["evil", "#", "evil#x", ""]), cuts=[[0, 4]]),
        sm.Write(id=rng.randrange(99), owner="evil#0", cuts=[[]] * rng.randrange(3)),
        sm.Read(id=rng.randrange(99), columns=[sm.Ranges([rng.randrange(9)], [rng.choice([-1, 2**62])], [2**62])]),
        sm.Read(id=rng.randrange(99), columns=[sm.Ranges([2**63 - 1], [], [0, 1])]),
        sm.Reserve(id=rng.randrange(99), owner="evil#0", cuts=rng.choice([[], [[]], [[0]], [[0, 2**63]], [[0, 2**62]] * 4, [[0, 1], [0]]])),
        sm.ReserveAhead(id=rng.randrange(99), owner=rng.choice(["evil", "evil#0", "victim#0"])),
        sm.Seal(id=rng.randrange(99), region=rng.choice([None, 0, -1, 2**28, 2**64 - 1])),
        sm.Fill(id=rng.randrange(99), owner=rng.choice(["evil#0", "victim#0"]), block=rng.randrange(12), start=rng.choice([0, -1, 2**62, 2**64 - 1])),
        sm.Hold(id=rng.randrange(99), blocks=rng.choice([[], [0], [2**64 - 1] * 3, [-1]])),
        sm.Join(id=rng.randrange(99), owner=rng.choice(["evil", "evil#0"]), pid=rng.choice([0, -1, 2**22 + 1, 2**64 - 1])),
    ])))  # fmt: skip
    match rng.randrange(4):
        case 0:
            header = bytearray(rng.randbytes(rng.randrange(40)))
        case 1:
            del header[rng.randrange(len(header)) :]
        case 2:
            header[rng.randrange(len(header))] ^= 1 << rng.randrange(8)
    return [bytes(header), *(rng.randbytes(rng.choice([0, 4, 7])) for _ in range(rng.randrange(4)))]


def test_500_malformed_messages_hurt_nobody_but_their_sender(queue):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with queue.client("victim") as client, zmq.Context.instance().socket(zmq.DEALER) as attacker:
        attacker.linger = 0
        attacker.connect(client.registration.shards[0].endpoint)
        values = np.arange(100, dtype="int32").reshape(10, 10)
        slices = [client.write([gid], {"response_ids": values[gid : gid + 1]})["response_ids"][0] for gid in range(10)]
        for _ in range(500):
            attacker.send_multipart(malformed(rng))
        attacker.send(encode(sm.ShardStatus(id=12345)))
        errors = 0
        while True:
            assert attacker.poll(5000), f"no answer after {errors} error replies"
            reply = decode_shard_reply(attacker.recv_multipart()[0])
            if reply.id == 12345:
                break
            errors += isinstance(reply, sm.ShardError)
            assert not (isinstance(reply, sm.ShardError) and reply.code == "internal"), reply
        assert errors > 250
        rows = [m.RowRef(gid, 0, 0, 0, [found]) for gid, found in enumerate(slices)]
        assert client.read(rows, ["response_ids"], run.spec())["response_ids"].values.tolist() == values.ravel().tolist()


def test_a_frame_that_claims_more_than_any_message_may_have_ends_its_connection_and_no_other(queue):
    with queue.client("victim-2") as client, zmq.Context.instance().socket(zmq.DEALER) as attacker:
        attacker.linger = 0
        attacker.connect(client.registration.shards[0].endpoint)
        attacker.send_multipart([encode(sm.Write(id=1, owner="evil#0", cuts=[[0, 1]])), bytes(sm.MOST_FRAME_BYTES + 1)])
        assert not attacker.poll(300), "there is nobody to answer to"
        assert set(client.shard_status()) == {0, 1}


def test_bytes_under_way_to_a_slow_reader_stay_as_they_were_when_their_block_is_freed_and_its_memory_wanted():
    with LocalQueue([run.spec()], capacity_bytes=40 << 20, keep_bytes=0) as queue, queue.client("writer") as client:
        values = np.arange(8 << 20, dtype="int32").reshape(8, -1)
        found = client.write(range(8), {"response_ids": values})["response_ids"]
        with zmq.Context.instance().socket(zmq.DEALER) as reader:
            reader.linger, reader.rcvhwm = 0, 1
            reader.connect(client.registration.shards[0].endpoint)
            ranges = sm.Ranges([piece.block for piece in found], [piece.start for piece in found], [piece.stop for piece in found])
            for number in range(2):
                reader.send(encode(sm.Read(id=number, columns=[ranges])))
            reader.send(encode(sm.Free(blocks=ranges.blocks)))
            assert run.comes_to_use(client, 0)
            rest = client.write([9], {"response_ids": np.full((1, 8 << 20), 7, dtype="int32")})["response_ids"]
            for _ in range(2):
                assert reader.poll(10_000)
                assert reader.recv_multipart()[1] == values.tobytes()
        client.discard(rest)
        assert run.comes_to_use(client, 0)
        deadline = time.monotonic() + 10.0
        while (status := client.shard_status()[0]).held_bytes or status.idle_bytes:
            assert time.monotonic() < deadline, status
        assert status.extents == 0
        assert status.resident_bytes <= 2 * 4096, "the header, and what is left of a page"


def test_an_error_reply_carries_the_id_of_the_request_it_answers(queue):
    with queue.client("a") as client, zmq.Context.instance().socket(zmq.DEALER) as peer:
        peer.linger = 0
        peer.connect(client.registration.shards[0].endpoint)
        peer.send(msgspec.msgpack.encode({"type": "Read", "id": 41, "columns": "all"}))
        assert peer.poll(5000)
        reply = decode_shard_reply(peer.recv_multipart()[0])
        assert isinstance(reply, sm.ShardError)
        assert (reply.id, reply.code) == (41, "malformed")
        assert "$.columns" in reply.message


def test_a_full_shard_refuses_with_the_numbers_and_serves_on():
    with LocalQueue([run.spec()], capacity_bytes=1000) as queue, queue.client("a") as client:
        kept = client.write([0], {"response_ids": np.zeros((1, 200), dtype="int32")})
        with pytest.raises(QueueError, match=r"400 bytes do not fit: 800 of capacity_bytes=1000") as refused:
            client.write([1], {"response_ids": np.zeros((1, 100), dtype="int32")})
        assert refused.value.code == "capacity"
        client.discard(kept["response_ids"])
        client.write([1], {"response_ids": np.zeros((1, 250), dtype="int32")})
        assert run.comes_to_use(client, 1000)


def test_a_write_that_one_shard_has_no_room_for_goes_to_another_and_fails_when_all_are_full():
    with LocalQueue([run.spec()], shards=2, capacity_bytes=100_000) as queue, queue.client("writer") as client:
        placed = [client.write([0], {"item": [bytes(size)]})["item"][0].shard for size in (60_000, 30_000, 60_000)]
        assert placed[2] == placed[1] != placed[0]
        with pytest.raises(QueueError, match="do not fit"):
            client.write([0], {"item": [bytes(60_000)]})


def test_reading_freed_bytes_names_the_groups_that_are_gone_and_only_those(queue):
    with queue.client("reader") as client:
        first = client.write([1, 2], {"response_ids": np.ones((2, 3), dtype="int32")})["response_ids"]
        second = client.write([3], {"response_ids": np.ones((1, 3), dtype="int32")})["response_ids"]
        assert first[0].shard != second[0].shard
        client.discard([first[1], second[0]])
        rows = [m.RowRef(gid, 0, 0, 0, [found]) for gid, found in zip([1, 2, 3], [*first, *second], strict=True)]
        with pytest.raises(Gone) as gone:
            client.read(rows, ["response_ids"], run.spec())
        assert gone.value.gids == [2, 3]
        assert len(client.read(rows[:1], ["response_ids"], run.spec())["response_ids"]) == 1


def test_what_a_dead_member_wrote_and_never_published_is_freed(queue):
    with queue.client("dying") as client, queue.client("other") as other:
        for _ in range(2):  # to each shard: about one that it does not know yet it asks the controller, which refuses it as well
            client.write([0], {"response_ids": np.ones((1, 3), dtype="int32")})
        other.write([1], {"response_ids": np.ones((1, 5), dtype="int32")})
        assert run.used_bytes(other, client.owner) == 24
        other.member_dead("dying", "killed").result(5.0)
        assert run.comes_to_use(other, 0, client.owner)
        assert run.used_bytes(other, other.owner) == 20
        with pytest.raises(QueueError) as refused:  # a zombie's write would never be freed
            client.write([0], {"response_ids": np.ones((1, 3), dtype="int32")})
        assert refused.value.code == "stale_owner"


def test_large_columns_come_back_over_several_shards_bit_for_bit(queue):
    values = np.frombuffer(np.random.default_rng(0).bytes(4 << 20), dtype="int32").reshape(64, -1)
    with queue.client("large") as client:
        slices = [client.write(range(start, start + 16), {"response_ids": values[start : start + 16]})["response_ids"] for start in range(0, 64, 16)]
        rows = [m.RowRef(gid, 0, 0, 0, [slices[gid // 16][gid % 16]]) for gid in range(63, -1, -1)]
        got = client.read(rows, ["response_ids"], run.spec())["response_ids"]
        assert got.values.tobytes() == values[::-1].tobytes()


def test_a_shard_that_is_killed_fails_its_readers_and_writers_within_seconds_and_is_named():
    with LocalQueue([run.spec()], shards=0) as queue:
        code = f"from transfer_queue.shard.server import serve; serve('shard-0', {queue.url!r}, ready=lambda endpoint: print(endpoint, flush=True))"
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        try:
            endpoint = process.stdout.readline().strip()
            with queue.client("a") as client:
                slices = client.write([0], {"response_ids": np.ones((1, 3), dtype="int32")})
                process.kill()
                started = time.monotonic()
                with pytest.raises(QueueGone, match=f"shard 0 at {endpoint} closed the connection"):
                    client.read([m.RowRef(0, 0, 0, 0, slices["response_ids"])], ["response_ids"], run.spec())
                with pytest.raises(QueueGone, match="shard 0"):
                    client.write([0], {"response_ids": np.ones((1, 3), dtype="int32")})
                assert time.monotonic() - started < 8.0
                client.member_dead("shard-0", "killed by the test").result(5.0)
        finally:
            process.kill()
            process.wait(10)
            process.stdout.close()


def test_where_the_system_has_no_memfd_everything_goes_by_bytes(monkeypatch):
    monkeypatch.delattr("os.memfd_create")
    values = np.arange(1 << 20, dtype="int32").reshape(8, -1)
    with LocalQueue([run.spec()]) as queue, queue.client("a") as client:
        found = client.write(range(8), {"response_ids": values})["response_ids"]
        rows = [m.RowRef(gid, 0, 0, 0, [piece]) for gid, piece in enumerate(found)]
        assert client.read(rows, ["response_ids"], run.spec())["response_ids"].values.tobytes() == values.tobytes()
        assert client.paths == {0: "bytes"}
        assert client.shard_status()[0].resident_bytes is None


def test_writing_without_a_shard_is_refused_when_none_came_in_time():
    refused = pytest.raises(QueueError, match=r"no shard came within timeout_s=0\.2.*start shards")
    with LocalQueue([run.spec()], shards=0) as queue, queue.client("a", timeout_s=0.2) as client, refused:
        client.write([0], {"response_ids": np.ones((1, 3), dtype="int32")})


def test_a_bind_that_cannot_be_told_to_others_is_refused():
    with pytest.raises(ValueError, match="members are told one"):
        serve("shard-0", "tcp://127.0.0.1:1", keys.make(), bind="tcp://0.0.0.0:0")
    with pytest.raises(ValueError, match="CURVE"):
        serve("shard-0", "tcp://127.0.0.1:1", bind="tcp://0.0.0.0:0")
