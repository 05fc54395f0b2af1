"""Requests that come twice because their connection broke: carried out once, and answered the same."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import queue_run as run
import zmq
from controller_desk import Desk, Who, plain
from controller_messages import put

from transfer_queue import messages as m
from transfer_queue.client import QueueClient
from transfer_queue.controller.repeats import FIRST, KEPT
from transfer_queue.wire import decode_request, encode

WAIT_S = 10.0


class LineDesk(Desk):
    """Requests under ids of one's own choice, on connections that come and go."""

    def say(self, connection: bytes, number: int, request: m.Request, back: int = 0) -> list[m.Reply]:
        """What is sent then, to anybody."""
        self.core.handle(connection, msgspec.structs.replace(request, id=FIRST + number, back=back))
        return self.told()

    def told(self) -> list[m.Reply]:
        replies = [reply for _, reply in (*self.core.outbox, *self.core.repeated)]
        self.core.outbox.clear()
        self.core.repeated.clear()
        return replies


@pytest.fixture
def desk() -> LineDesk:
    return LineDesk(plain())


def pull(who: Who, **more: Any) -> m.Pull:
    return m.Pull(topic="t", loaded=0, limit=1, wait_s=more.pop("wait_s", 0.0), **who.fields)


def test_a_grant_whose_reply_was_lost_is_given_again_and_not_twice(desk: LineDesk) -> None:
    desk.prompts(4)
    rollout = desk.join("rollout-0")
    (first,) = desk.say(b"one", 5, pull(rollout))
    (again,) = desk.say(b"two", 5, pull(rollout))
    assert again == first
    assert desk.topic.ledger.open == 1
    (other,) = desk.say(b"two", 6, pull(rollout))
    assert isinstance(other, m.OkPulled)
    assert other.groups != again.groups  # type: ignore[attr-defined]


def test_what_has_an_effect_of_its_own_has_it_once(desk: LineDesk) -> None:
    who = desk.join("a")
    for _ in range(3):
        desk.say(b"one", 1, m.Report(kind="fact", data={}, **who.fields))
    assert len(desk.log.of("report")) == 1
    for _ in range(2):
        (refused,) = desk.say(b"one", 2, m.Pull(topic="no", loaded=0, limit=1, **who.fields))
        assert isinstance(refused, m.ErrorReply)


def test_a_parked_request_keeps_its_turn_and_is_answered_where_its_member_waits_now(desk: LineDesk) -> None:
    first, second = desk.join("rollout-0"), desk.join("rollout-1")
    assert desk.say(b"one", 1, pull(first, wait_s=50.0)) == []
    assert desk.say(b"two", (1 << 32) + 1, pull(second, wait_s=50.0)) == []
    assert desk.say(b"three", 1, pull(first, wait_s=50.0)) == []
    desk.core.handle(b"source", m.Register(id=1, name="source", role="source", pid=1, host="h"))
    prompt = m.PromptPut(gid=0, columns={"prompt": desk.slice()})
    desk.core.handle(b"source", m.PutPrompts(id=2, topic="t", prompts=[prompt], cursor=1, member="source", incarnation=0))
    granted = [(connection, reply) for connection, reply in desk.core.outbox if isinstance(reply, m.OkPulled)]
    assert [(connection, reply.id) for connection, reply in granted] == [(b"three", FIRST + 1)]


def test_a_grant_that_cannot_be_delivered_is_taken_back_and_its_repeat_carried_out_anew(desk: LineDesk) -> None:
    desk.prompts(1)
    rollout = desk.join("rollout-0")
    (lost,) = desk.say(b"one", 1, pull(rollout))
    desk.core.undelivered(b"one", lost)
    assert desk.states() == {0: "admitted"}
    assert desk.topic.groups[0].holder is None
    (again,) = desk.say(b"two", 1, pull(rollout))
    assert isinstance(again, m.OkPulled)
    assert isinstance(lost, m.OkPulled)
    assert again.groups[0].fence > lost.groups[0].fence


def test_a_late_copy_out_of_a_connection_that_is_gone_does_nothing(desk: LineDesk) -> None:
    desk.prompts(4)
    rollout = desk.join("rollout-0")
    desk.say(b"one", 1, pull(rollout))
    desk.say(b"two", 1, pull(rollout))
    assert len(desk.say(b"two", 2, pull(rollout))) == 1, "says that the reply to 1 has come"
    assert desk.say(b"one", 1, pull(rollout)) == []
    assert desk.topic.ledger.open == 2


def test_a_parked_put_whose_connection_is_lost_keeps_its_bytes_for_the_repeat() -> None:
    desk = LineDesk(plain(batch=1, staleness=0))
    who = desk.join("a")

    def request(token: int) -> m.Put:
        return put(1, {name: [m.Slice(0, token, 0, 1)] for name in ("tokens", "prompt")}, token=token, topic="t", wait_s=50.0, **who.fields)

    desk.say(b"one", 1, request(1))
    assert desk.say(b"one", 2, request(2), back=1) == []
    desk.core.undelivered(b"one", m.OkEmpty(id=FIRST + 1))
    assert desk.freed() == []
    assert desk.say(b"two", 2, request(2), back=1) == []
    trainer = desk.join("trainer", "trainer")
    taken = desk.take(trainer, step=0)
    desk.core.handle(b"t", desk.commit(trainer, 0, [taken.lease]))
    stored = [reply for reply in desk.told() if isinstance(reply, m.OkStored)]
    assert [reply.groups for reply in stored] == [[1]]
    assert desk.freed() == [1]


def test_replies_are_kept_until_they_are_confirmed_and_no_more_than_a_client_may_miss(desk: LineDesk) -> None:
    who = desk.join("a")
    for number in range(1, KEPT + 20):
        desk.say(b"one", number, m.Report(kind="fact", data={}, **who.fields), back=number - 1)
    (line,) = desk.core._runtime.repeats._lines.values()
    assert len(line.replies) == KEPT
    desk.say(b"one", KEPT + 20, m.Report(kind="fact", data={}, **who.fields))
    assert len(line.replies) == 1


def test_they_go_with_the_member(desk: LineDesk) -> None:
    who = desk.join("a")
    desk.say(b"one", 1, m.Report(kind="fact", data={}, **who.fields))
    (left,) = desk.say(b"one", 2, m.Leave(**who.fields))
    assert isinstance(left, m.OkEmpty)
    assert not desk.core._runtime.repeats._lines
    assert isinstance(desk.say(b"two", 2, m.Leave(**who.fields))[0], m.OkEmpty), "who left is told so again"
    assert len([event for event in desk.log.of("member") if event.reason == "left"]) == 1


def test_a_registration_that_comes_twice_is_one(desk: LineDesk) -> None:
    request = m.Register(name="a", role="rollout", pid=1, host="h")
    first, again = desk.say(b"one", 1, request), desk.say(b"two", 1, request)
    assert first == again
    (other,) = desk.say(b"two", 1 << 32, request)
    assert isinstance(other, m.OkRegistered)
    assert other.incarnation == 1


def test_a_line_that_is_anothers_is_not_used(desk: LineDesk) -> None:
    desk.prompts(4)
    one, two = desk.join("rollout-0"), desk.join("rollout-1")
    (first,) = desk.say(b"one", 1, pull(one))
    (second,) = desk.say(b"two", 1, pull(two))
    assert first != second


# ------------------------------------------------------------ the client's side


def ids(server: zmq.Socket[bytes], count: int) -> tuple[bytes, list[m.Request]]:
    """The next requests, and the connection of the last."""
    requests = []
    connection = b""
    for _ in range(count):
        assert server.poll(int(WAIT_S * 1000))
        connection, frame = server.recv_multipart()
        requests.append(decode_request(frame))
    return connection, requests


def test_a_member_sends_again_what_has_no_reply_under_the_same_ids_in_order() -> None:
    context = zmq.Context.instance()
    first = context.socket(zmq.ROUTER)
    url = f"tcp://127.0.0.1:{first.bind_to_random_port('tcp://127.0.0.1')}"
    registered = m.OkRegistered(member="a", incarnation=3, config=b"", topics=[run.spec()], shards=[], comeback_s=WAIT_S)
    with QueueClient(url, None, registered, WAIT_S) as client, context.socket(zmq.ROUTER) as second:
        pending = [client.demand(run.TOPIC, wait_s=60.0) for _ in range(3)]
        connection, asked = ids(first, 3)
        assert [request.id for request in asked] == [each.id for each in pending]
        assert all(request.id >= FIRST for request in asked)
        assert [request.back for request in asked] == [0, 1, 2]
        first.send_multipart([connection, encode(m.OkDemand(id=asked[0].id, wanted=1, cursor=0, done=False))])
        assert pending[0].result(WAIT_S).wanted == 1
        first.close(linger=0)
        client.poll(0.05)  # the loss is noticed
        late = client.demand(run.TOPIC, wait_s=60.0)
        second.linger = 0
        second.bind(url)
        client.poll(1.0)
        connection, repeated = ids(second, 3)
        while second.poll(100):
            repeated.append(decode_request(second.recv_multipart()[1]))
        assert {request.id for request in repeated} == {asked[1].id, asked[2].id, late.id}, "nothing that has its reply"
        for request in repeated:
            second.send_multipart([connection, encode(m.OkDemand(id=request.id, wanted=7, cursor=0, done=False))])
        assert [each.result(WAIT_S).wanted for each in (*pending[1:], late)] == [7, 7, 7]


def test_a_cancel_that_reached_the_new_connection_first_is_said_again_behind_what_it_cancels() -> None:
    """The controller finds nothing to cancel on a connection that has asked for nothing yet, and says that all is well."""
    context = zmq.Context.instance()
    first = context.socket(zmq.ROUTER)
    url = f"tcp://127.0.0.1:{first.bind_to_random_port('tcp://127.0.0.1')}"
    registered = m.OkRegistered(member="a", incarnation=3, config=b"", topics=[run.spec()], shards=[], comeback_s=WAIT_S)
    with QueueClient(url, None, registered, WAIT_S) as client, context.socket(zmq.ROUTER) as second:
        pending = client.demand(run.TOPIC, wait_s=60.0)
        ids(first, 1)
        first.close(linger=0)
        client.poll(0.05)  # the loss is noticed
        pending.cancel()
        second.linger = 0
        second.bind(url)
        connection, (early,) = ids(second, 1)  # zmq sends what waited as soon as it is connected, whoever looks
        assert isinstance(early, m.Cancel)
        second.send_multipart([connection, encode(m.OkEmpty(id=early.id))])
        assert not second.poll(300), "the reply has arrived before its client looks"
        assert not client.poll(0.5)
        _, (again, cancel) = ids(second, 2)
        assert isinstance(again, m.Demand)
        assert isinstance(cancel, m.Cancel)
        assert (again.id, cancel.target) == (pending.id, pending.id)


def test_connections_of_one_member_have_ids_of_their_own() -> None:
    registered = m.OkRegistered(member="a", incarnation=0, config=b"", topics=[], shards=[])
    with zmq.Context.instance().socket(zmq.ROUTER) as server:
        server.linger = 0
        url = f"tcp://127.0.0.1:{server.bind_to_random_port('tcp://127.0.0.1')}"
        with QueueClient(url, None, registered, WAIT_S) as client, client.attach() as other:
            for each in (client, other):
                each.demand("t")
            _, asked = ids(server, 2)
            assert len({request.id >> 32 for request in asked}) == 2
