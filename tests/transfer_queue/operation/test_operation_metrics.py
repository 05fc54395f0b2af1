"""The endpoint of a queue, scraped over HTTP and read with the client library's own parser: every value is one that the script gives."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.error import URLError

import pytest
import queue_run
from hypothesis import given
from hypothesis import strategies as st
from scripted import CRITIC, POLICY, Scripted, metric, scrape, scripted

from transfer_queue.local import LocalQueue
from transfer_queue.operation import exporter
from transfer_queue.operation.exporter import Exporter
from transfer_queue.operation.labels import OTHER, Vocabulary
from transfer_queue.operation.metrics import OPEN_STATES
from transfer_queue.operation.probe import Probe

NAMES = r"transfer_queue(_[a-z0-9]+)+"


@pytest.fixture(scope="module")
def run() -> Iterator[Scripted]:
    with scripted() as running:
        yield running


@pytest.fixture(scope="module")
def url(run: Scripted) -> Iterator[str]:
    with Exporter(run.queue.url, None, "127.0.0.1", 0) as serving:
        yield serving.url


def test_every_count_is_the_one_that_the_script_gives(run: Scripted, url: str) -> None:
    expected = {
        metric("up"): 1,
        metric("stall_limit_seconds"): 60,
        **{metric("state", state=state): float(state == "run") for state in ("run", "drain", "pause", "stop")},
        **{metric("members", role=role): count for role, count in {"shard": 2, "source": 1, "rollout": 1, "scorer": 2}.items()},
        **{metric("members", role=role): 1 for role in ("trainer", "publisher")},
        metric("requests_total", kind="Register"): 9,
        metric("requests_total", kind="PutPrompts"): 2,
        metric("requests_total", kind="Pull"): 3,
        metric("requests_total", kind="PutRows"): 3,
        metric("requests_total", kind="DropGroups"): 1,
        metric("requests_total", kind="Take"): 7,
        metric("requests_total", kind="WriteBack"): 2,
        metric("requests_total", kind="Commit"): 1,
        metric("requests_total", kind="MemberDead"): 1,
        metric("refused_requests_total", code="unknown_topic"): 1,
        metric("version", topic=POLICY): 0,
        metric("topic_over", topic=POLICY): 0,
        metric("target_groups", topic=POLICY): 4,
        metric("trained_groups_total", topic=POLICY): 0,
        **{metric("groups", topic=POLICY, state=state): count for state, count in zip(OPEN_STATES, (1, 0, 1, 1), strict=True)},
        metric("dropped_groups_total", topic=POLICY, reason="too_long"): 1,
        metric("permits_free", topic=POLICY): 1,
        metric("permits_capacity", topic=POLICY): 4,
        metric("prompts_waiting", topic=POLICY): 0,
        metric("stored_rows", topic=POLICY): 4,
        metric("reserved_bytes", topic=POLICY): 3 * (1 << 16),
        metric("budget_bytes", topic=POLICY): 1 << 32,
        metric("lost_attempts_total", topic=POLICY): 1,
        metric("stage_done_rows_total", topic=POLICY, stage="reward"): 2,
        metric("stage_leased_rows", topic=POLICY, stage="reward"): 2,
        metric("stage_ready_rows", topic=POLICY, stage="reward"): 0,
        metric("stage_leases", topic=POLICY, stage="reward"): 1,
        metric("stage_expired_leases_total", topic=POLICY, stage="reward"): 0,
        metric("stage_sampler_fallbacks_total", topic=POLICY, stage="reward"): 0,
        metric("stage_waiting_members", topic=POLICY, stage="reward"): 1,
        metric("stage_done_rows_total", topic=POLICY, stage="trainer"): 0,
        metric("stage_leased_rows", topic=POLICY, stage="trainer"): 2,
        metric("stage_leases", topic=POLICY, stage="trainer"): 1,
        metric("stage_waiting_members", topic=POLICY, stage="trainer"): 0,
        metric("partition_keys", partition="notes"): 2,
        metric("partition_bytes", partition="notes"): 0,
        **{metric("shard_up", shard=shard): 1 for shard in "01"},
        **{metric("shard_capacity_bytes", shard=shard): 1 << 30 for shard in "01"},
    }
    found = scrape(url)
    assert {sample: found.get(sample) for sample in expected} == expected
    assert found[metric("late_messages_total", topic=POLICY)] >= 1
    assert metric("published_version", topic=POLICY) not in found, "nothing was published: that is no version 0"


def test_a_topic_that_is_over_keeps_its_totals_and_holds_nothing(url: str) -> None:
    found = scrape(url)
    of_critic = {sample: value for sample, value in found.items() if ("topic", CRITIC) in sample[1]}
    for name, value in {"version": 1, "published_version": 1, "topic_over": 1, "target_groups": 2, "trained_groups_total": 2}.items():
        assert of_critic[metric(name, topic=CRITIC)] == value
    for name in ("stored_rows", "reserved_bytes", "prompts_waiting", "lost_attempts_total", "late_messages_total"):
        assert of_critic[metric(name, topic=CRITIC)] == 0
    assert [of_critic[metric("groups", topic=CRITIC, state=state)] for state in OPEN_STATES] == [0, 0, 0, 0]
    assert of_critic[metric("stage_done_rows_total", topic=CRITIC, stage="reward")] == 4
    assert of_critic[metric("stage_done_rows_total", topic=CRITIC, stage="trainer")] == 4
    of_replay = ("stage_replayed_groups_total", "stage_replay_kept_groups", "stage_replay_kept_bytes")
    assert [of_critic[metric(name, topic=CRITIC, stage="trainer")] for name in of_replay] == [0, 0, 0], "its one batch was the last"
    assert not {metric(name, topic=CRITIC, stage="reward") for name in of_replay} & of_critic.keys(), "it declares none"
    absent = {metric("oldest_group_seconds", topic=CRITIC), metric("stage_oldest_lease_seconds", topic=CRITIC, stage="trainer")}
    assert not absent & of_critic.keys(), "an age of nothing is no 0"


def test_the_shards_hold_what_is_open_and_no_more(run: Scripted, url: str) -> None:
    deadline = time.monotonic() + 10  # the controller frees by messages of its own, and a scrape may show what was a second ago
    while sum(value for (name, _), value in scrape(url).items() if name == "transfer_queue_shard_used_bytes") != run.stored_bytes:
        assert time.monotonic() < deadline
        threading.Event().wait(0.2)


def test_ages_grow_with_the_clock(url: str) -> None:
    ages = [
        metric("uptime_seconds"),
        metric("idle_seconds"),
        metric("stage_oldest_lease_seconds", topic=POLICY, stage="reward"),
        metric("stage_longest_wait_seconds", topic=POLICY, stage="reward"),
        metric("oldest_group_seconds", topic=POLICY),
    ]
    before = scrape(url)
    threading.Event().wait(exporter.FRESH_S)
    after = scrape(url)
    assert [after[age] - before[age] > 0.5 * exporter.FRESH_S for age in ages] == [True] * len(ages)
    assert after[metric("controller_cpu_seconds_total")] >= before[metric("controller_cpu_seconds_total")] > 0


def test_names_and_types_follow_the_conventions(url: str) -> None:
    for name, labels in scrape(url):
        assert re.fullmatch(NAMES, name)
        assert {label for label, _ in labels} <= {"topic", "stage", "state", "reason", "role", "kind", "code", "shard", "partition"}
        assert not re.search(r"_(ms|milliseconds|minutes|kb|mb|percent)(_|$)", name), "base units"


# ------------------------------------------------------------ who scrapes


def test_many_scrapes_are_one_question_to_the_controller(run: Scripted, url: str) -> None:
    asked = metric("requests_total", kind="Status")
    threading.Event().wait(exporter.FRESH_S)
    begun, before = time.monotonic(), scrape(url)[asked]
    for _ in range(50):
        scrape(url)
    took = time.monotonic() - begun
    with Probe(run.queue.url) as probe:
        after = probe.ask(5.0).status.traffic.requests["Status"]
    assert after - before <= took / exporter.FRESH_S + 2  # this probe's own, and one that was due


def test_garbage_is_survived_and_answered_or_cut(url: str) -> None:
    host, port = url.removeprefix("http://").removesuffix("/metrics").split(":")
    garbage = [
        b"",
        b"\x00" * 2000,
        b"\xff\xfe" * 500 + b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /metrics HTTP/9.9\r\n\r\n",
        b"BREW /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"x%d: y\r\n" % number for number in range(300)) + b"\r\n",
        b"GET /?name[]=" + b"&name[]=".join(b"%%%d" % number for number in range(2000)) + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text; version=evil; q=nan\r\nAccept-Encoding: gzip;q=\r\n\r\n",
    ]
    for message in garbage:
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(message)
            client.shutdown(socket.SHUT_WR)
            try:
                while client.recv(1 << 16):
                    pass
            except ConnectionError:
                pass  # it was cut off
    assert scrape(url)[metric("up")] == 1
    assert scrape(url)[metric("members", role="shard")] == 2


@given(st.binary(max_size=300))
def test_no_bytes_end_the_endpoint(url: str, message: bytes) -> None:
    host, port = url.removeprefix("http://").removesuffix("/metrics").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(message + b"\r\n\r\n")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert client.recv(15) == b"HTTP/1.0 200 OK"


def test_scrapers_that_take_nothing_hold_up_nobody_and_no_word_comes(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    host, port = url.removeprefix("http://").removesuffix("/metrics").split(":")
    slow = []
    for _ in range(8):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        client.settimeout(5)
        client.connect((host, int(port)))
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        slow.append(client)
    try:
        begun = time.monotonic()
        assert scrape(url)[metric("up")] == 1
        assert time.monotonic() - begun < 3
    finally:
        for client in slow:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")  # a reset, not an end
            client.close()
    scrape(url)
    assert capfd.readouterr() == ("", "")


# ------------------------------------------------------------ a controller that is not there


def test_without_a_controller_up_is_zero_and_nothing_else_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "ANSWER_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"tcp://127.0.0.1:{closed.getsockname()[1]}"
    with Exporter(address, None, "127.0.0.1", 0) as serving:
        assert scrape(serving.url) == {metric("up"): 0}
    with pytest.raises(URLError):
        scrape(serving.url)


@pytest.mark.e2e
def test_a_controller_that_went_is_told_at_the_next_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "ANSWER_S", 1.5)
    with ExitStack() as stack:
        with LocalQueue([queue_run.spec()]) as queue:
            serving = stack.enter_context(Exporter(queue.url, None, "127.0.0.1", 0))
            assert scrape(serving.url)[metric("up")] == 1
        threading.Event().wait(exporter.FRESH_S)
        assert scrape(serving.url) == {metric("up"): 0}


# ------------------------------------------------------------ labels


@given(st.lists(st.dictionaries(st.text(max_size=3), st.integers(0, 5), max_size=6), max_size=20))
def test_labels_are_bounded_and_sums_by_label_never_go_back(growths: list[dict[str, int]]) -> None:
    words, totals, before = Vocabulary(("stale",), most=4), dict[str, float](), dict[str, float]()
    for growth in growths:
        for value, count in growth.items():
            totals[value] = totals.get(value, 0) + count
        sums = words.sums(totals)
        assert sum(sums.values()) == sum(totals.values())
        assert all(sums[label] >= count for label, count in before.items())
        assert len(sums) <= 5
        before = sums


def test_a_word_beyond_the_bound_is_other() -> None:
    words = Vocabulary(("a",), most=2)
    assert [words.label(word) for word in ("b", "c", "a", "b")] == ["b", OTHER, "a", "b"]
    assert Vocabulary().label("x" * 1000) == "x" * 64
    assert Vocabulary(most=1).largest({"a": 1.0, "b": 3.0, "c": 2.0}) == {"a": 1.0, OTHER: 3.0}
