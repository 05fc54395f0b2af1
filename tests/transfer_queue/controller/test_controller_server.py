"""The controller's loop on real sockets: malformed bytes, parked requests, shards that are told, and an end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq
from controller_bench import Log
from controller_desk import plain

from transfer_queue import messages as m
from transfer_queue.controller import server
from transfer_queue.controller.core import Core, CoreConfig
from transfer_queue.shard.messages import AnyShardRequest, Free, Sweep
from transfer_queue.wire import decode_reply, encode

DEADLINE_MS = 5000


class Running:
    def __init__(self, **config: Any) -> None:
        self.log = Log()
        self._up = threading.Event()
        self.url = ""
        self.sockets: list[zmq.Socket[bytes]] = []
        self.attached: list[Core] = []
        self.thread = threading.Thread(target=self._serve, args=(CoreConfig(topics=[plain(batch=1, staleness=0)], **config),), daemon=True)
        self.thread.start()
        assert self._up.wait(5)

    def _serve(self, config: CoreConfig) -> None:
        server.serve(config, lambda: self.log, bind="tcp://127.0.0.1:0", security=None, ready=self._ready, grace_s=0.6, attach=self.attached.append)

    def _ready(self, url: str) -> None:
        self.url = url
        self._up.set()

    def connect(self) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        socket.linger = 0
        socket.connect(self.url)
        self.sockets.append(socket)
        return socket

    def join(self, name: str, role: str, **endpoints: str) -> tuple[zmq.Socket[bytes], dict[str, Any]]:
        socket = self.connect()
        reply = ask(socket, m.Register(id=1, name=name, role=role, pid=1, host="h", endpoints=endpoints))
        assert isinstance(reply, m.OkRegistered)
        return socket, {"member": name, "incarnation": reply.incarnation}

    def end(self) -> None:
        ask(self.connect(), m.Stop(reason="end"))
        self.thread.join(6)
        assert not self.thread.is_alive()


def receive(socket: zmq.Socket[bytes]) -> m.Reply:
    assert socket.poll(DEADLINE_MS), "no reply"
    return decode_reply(socket.recv())


def ask(socket: zmq.Socket[bytes], request: m.Request) -> m.Reply:
    socket.send(encode(request))
    return receive(socket)


@pytest.fixture
def running() -> Iterator[Running]:
    run = Running()
    yield run
    if run.thread.is_alive():
        run.end()
    for socket in run.sockets:
        socket.close()


def test_malformed_bytes_get_an_error_reply_and_the_loop_lives_on(running: Running) -> None:
    socket = running.connect()
    for payload in (b"", b"\xff\xfe", msgspec.msgpack.encode({"type": "Pull", "id": 7}), msgspec.msgpack.encode([1, 2]), b"\x80" * 5000):
        socket.send(payload)
        reply = receive(socket)
        assert isinstance(reply, m.ErrorReply)
        assert reply.code == "malformed"
    socket.send_multipart([msgspec.msgpack.encode({"type": "Pull", "id": 7}), b"more"])
    assert receive(socket).id == 7
    assert isinstance(ask(socket, m.Status(id=8)), m.OkStatus)


def test_a_message_nested_deeper_than_any_decoder_follows_is_malformed_and_ends_nothing(running: Running) -> None:
    socket = running.connect()
    socket.send(b"\x82\xa2id\x05\xa1x" + b"\x91" * 100_000 + b"\x01")
    reply = receive(socket)
    assert isinstance(reply, m.ErrorReply)
    assert reply.code == "malformed"
    assert isinstance(ask(socket, m.Status(id=1)), m.OkStatus)


def test_a_shard_that_cannot_be_connected_to_is_dead_and_the_loop_lives_on(running: Running) -> None:
    running.join("shard-0", "shard", shard="ipc://" + "x" * 200)  # longer than a socket path may be
    source, who = running.join("source-0", "source")
    put = m.PromptPut(gid=0, columns={"nothing": m.Slice(0, 1, 0, 1)})  # refused: its block is to be freed
    assert isinstance(ask(source, m.PutPrompts(id=2, topic="t", prompts=[put], cursor=1, **who)), m.ErrorReply)
    reply = ask(running.connect(), m.Status(id=1))
    assert isinstance(reply, m.OkStatus)
    assert "shard-0#0" not in reply.status.members
    (died,) = [event for event in running.log.of("member") if event.reason == "died"]
    assert died.member == "shard-0#0"


def test_who_attaches_is_given_the_state_machine_once(running: Running) -> None:
    assert len(running.attached) == 1


def test_a_parked_request_does_not_block_others_and_is_answered_when_it_can_be(running: Running) -> None:
    rollout, who = running.join("rollout-0", "rollout")
    rollout.send(encode(m.Pull(id=2, topic="t", loaded=0, limit=1, wait_s=30.0, **who)))
    rollout.send(encode(m.Pull(id=3, topic="t", loaded=0, limit=1, wait_s=0.05, **who)))
    assert receive(rollout) == m.OkPulled(id=3, groups=[])
    source, puts = running.join("source", "source")
    prompt = m.PromptPut(gid=0, columns={"prompt": m.Slice(0, 1, 0, 1)})
    assert isinstance(ask(source, m.PutPrompts(id=2, topic="t", prompts=[prompt], cursor=1, **puts)), m.OkPrompts)
    reply = receive(rollout)
    assert isinstance(reply, m.OkPulled)
    assert [lease.gid for lease in reply.groups] == [0]


def test_a_grant_to_a_connection_that_is_gone_goes_to_the_next(running: Running) -> None:
    rollout, who = running.join("rollout-0", "rollout")
    rollout.send(encode(m.Pull(id=2, topic="t", loaded=0, limit=1, wait_s=30.0, **who)))
    assert isinstance(ask(running.connect(), m.Status()), m.OkStatus)
    rollout.close()
    time.sleep(0.2)  # the server's side notices the end of the connection
    source, puts = running.join("source", "source")
    prompt = m.PromptPut(gid=0, columns={"prompt": m.Slice(0, 1, 0, 1)})
    ask(source, m.PutPrompts(id=2, topic="t", prompts=[prompt], cursor=1, **puts))
    reply = ask(running.connect(), m.Pull(topic="t", loaded=0, limit=1, wait_s=2.0, **who))
    assert isinstance(reply, m.OkPulled)
    assert [lease.gid for lease in reply.groups] == [0]
    assert "undelivered" in [event.reason for event in running.log.of("group")]


def test_shards_are_told_what_to_free_and_whom_to_sweep(running: Running) -> None:
    shard: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    port = shard.bind_to_random_port("tcp://127.0.0.1")
    running.sockets.append(shard)
    running.join("shard-0", "shard", shard=f"tcp://127.0.0.1:{port}")
    source, who = running.join("source", "source")
    prompts = [m.PromptPut(gid=0, columns={"prompt": m.Slice(0, 5, 0, 1)}), m.PromptPut(gid=0, columns={"prompt": m.Slice(0, 6, 0, 1)})]
    ask(source, m.PutPrompts(id=2, topic="t", prompts=prompts, cursor=1, **who))
    ask(source, m.Leave(id=3, **who))
    told = []
    for _ in range(2):
        assert shard.poll(DEADLINE_MS)
        told.append(msgspec.msgpack.decode(shard.recv_multipart()[1], type=AnyShardRequest))
    assert told == [Free(blocks=[6], upto=1), Sweep(owner="source#0", keep=[5], upto=1)]


def test_the_loop_ends_when_the_run_is_stopped_and_its_members_left_or_the_grace_is_over() -> None:
    run = Running()
    socket, who = run.join("rollout-0", "rollout")
    ask(socket, m.Stop(id=2, reason="end"))
    reply = ask(socket, m.Watch(id=3, **who))
    assert isinstance(reply, m.OkDirective)
    assert reply.directive.state == "stop"
    ask(socket, m.Leave(id=4, **who))
    assert isinstance(ask(socket, m.Status(id=5)), m.OkStatus), "the last answer is still given"
    run.thread.join(5)
    assert not run.thread.is_alive()
    stuck = Running()
    silent, _ = stuck.join("rollout-0", "rollout")
    ask(silent, m.Stop(id=2, reason="end"))
    stuck.thread.join(6)
    assert not stuck.thread.is_alive()
    for each in (*run.sockets, *stuck.sockets):
        each.close()


def test_a_bind_beyond_loopback_needs_keys() -> None:
    with pytest.raises(ValueError, match="CURVE keys are required"):
        server.serve(CoreConfig(topics=[plain()]), Log, bind="tcp://0.0.0.0:0", security=None, ready=lambda _: None)
