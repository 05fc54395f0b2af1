"""What `python -m transfer_queue status` tells of a running queue, as text and as JSON, once and again and again."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest
import queue_processes
import queue_run
import zmq
from scripted import CRITIC, POLICY, Scripted, finish, put_prompts, scripted

from transfer_queue import keys, status
from transfer_queue.__main__ import main
from transfer_queue.errors import QueueError, QueueTimeout
from transfer_queue.local import LocalQueue
from transfer_queue.messages import Column, Consumer, ConsumerStatus, TopicSpec, TopicStatus, Window
from transfer_queue.operation.probe import Probe
from transfer_queue.operation.report import QueueReport
from transfer_queue.operation.upstream import waits_for
from transfer_queue.operation.watching import watch
from transfer_queue.security import Security


@pytest.fixture(scope="module")
def run() -> Iterator[Scripted]:
    with scripted() as running:
        yield running


def shown(run: Scripted, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["status", "--controller", run.queue.url, *options]) == 0
    return capsys.readouterr().out


def test_the_text_tells_topics_columns_groups_stages_bytes_and_ages(run: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(run, capsys)
    for line in (
        r"state run, idle for \d+\.\d s, up for \d+\.\d s",
        r"requests \d+ since the start, refused unknown_topic 1, \d+\.\d s of processor time",
        r"  shard 0  tcp://127\.0\.0\.1:\d+  [\d.]+ \w+ of 1\.1 GB in \d+ blocks  .* of memory, .* free and warm, 0 B freed but held by readers",
        r"topic policy: version 0, 0 of 4 groups trained, none published",
        r"topic critic: version 1, 2 of 2 groups trained, 1 published, over",
        r"  groups   admitted 1, complete 1, dropped:too_long 1, generating 0, leased 1, trained 0",
        r"  permits  1 free of 4, 3 open, 0 prompts wait",
        r"  bytes    196\.6 kB reserved of 4\.3 GB, 4 rows stored",
        r"  again    1 groups came back undone, 0 leases ran out, \d+ messages came too late",
        r"    prompt_ids +int32 per_token shared +of source +read by reward, trainer",
        r"    item +blob shared +of source +read by reward",
        r"    reward +float64 scalar +of reward +read by trainer",
        r"partition notes: 2 keys, 0 columns, 0 B",
        r"    trainer: 0 rows done, 2 leased \(1 leases, the oldest \d+\.\d s\), 0 ready",
    ):
        assert re.search(f"^{line}$", text, re.MULTILINE), line
    waits = r"waiting: reward-1#0 \d+\.\d s for response_ids of rollout \(1 admitted\)"
    assert re.search(rf"^    reward: 2 rows done, 2 leased \(1 leases, the oldest \d+\.\d s\), 0 ready, {waits}$", text, re.MULTILINE)
    assert re.search(r"reward +0 ready +last work .*reward-0#0 has 2 rows of groups \[1\] for \d+\.\d s; reward-1#0 waits", text), "each lease's age"
    assert re.search(r"reward-1#0 +scorer +heard .*waits: Take reward for", text)


def test_json_is_the_whole_report_in_one_line(run: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(run, capsys, "--json")
    assert text.count("\n") == 1
    report = msgspec.json.decode(text, type=QueueReport)
    assert [topic.name for topic in report.status.topics] == [POLICY, CRITIC]
    assert [shard.index for shard in report.shards] == [0, 1]
    assert sum(shard.stored.used_bytes for shard in report.shards if shard.stored) == run.stored_bytes
    assert report.waits is not None
    assert report.status.topics[0].spec == queue_run.spec(batch=2)


def test_watching_goes_on_until_ctrl_c_or_the_end_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    looks = []

    def show(report: QueueReport) -> str:
        looks.append(report.status.state)
        if len(looks) == 3:
            raise KeyboardInterrupt
        return status.render(report)

    with LocalQueue([queue_run.spec()]) as queue, Probe(queue.url) as probe:
        assert watch(probe, show, every_s=0.1, timeout_s=5.0) == 0
        assert looks == ["run"] * 3
        assert capsys.readouterr().out.count("state run") == 2

        def end(report: QueueReport) -> str:
            if report.status.state == "run":
                with queue.client("stopper") as client:
                    client.stop("enough").result(5.0)
                    client.leave().result(5.0)
            return report.status.reason

        assert watch(probe, end, every_s=0.1, timeout_s=5.0) == 0
    assert "enough" in capsys.readouterr().out


# ------------------------------------------------------------ what does not answer


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("tcp://127.0.0.1:9", "gave no answer within 0.2 s: it is not up, hangs, or the address or the key is that of another run"),
        ("127.0.0.1:9", "is no address"),
        ("tcp://127.0.0.1:notaport", "is no address"),
        ("http://127.0.0.1:9", "is no address"),
    ],
)
def test_no_controller_is_one_clear_line(url: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--controller", url, "--timeout-s", "0.2"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: controller='{url}' ")
    assert told in said
    assert said.count("\n") == 1


def test_a_queue_with_keys_is_asked_with_its_key_and_says_so_without(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    _, client = keys.write(tmp_path)
    with LocalQueue([queue_run.spec()], security=Security.load(tmp_path / "server.key")) as queue:
        assert main(["status", "--controller", queue.url, "--key", str(client)]) == 0
        assert re.search(r"shard 0 .* of 1.1 GB in 0 blocks", capsys.readouterr().out), "the shard has keys of its own"
        assert main(["status", "--controller", queue.url, "--timeout-s", "2"]) == 1
        assert "key" in capsys.readouterr().err, "zmq tells a refusal, or only nothing, as the two sides' greetings cross"


@pytest.mark.e2e
def test_a_shard_that_does_not_answer_is_a_line_with_the_reason() -> None:
    with queue_processes.Process("controller") as controller:
        url = controller.heard()
        with queue_processes.Process("shard", url) as first, queue_processes.Process("shard", url, "shard-1") as second, Probe(url) as probe:
            first.heard(), second.heard()
            assert [shard.stored is not None for shard in probe.ask(5.0).shards] == [True, True]
            second.kill()
            report = probe.ask(3.0)
            assert [shard.stored is not None for shard in report.shards] == [True, False]
            assert re.search(r"shard 1 +tcp://\S+ +does not answer +shard 1 at tcp", status.render(report))
            assert [shard.stored is not None for shard in probe.ask(0.3).shards] == [True, False]


# ------------------------------------------------------------ words of others


def test_names_that_members_choose_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with LocalQueue([queue_run.spec()]) as queue:
        for name, role in (("evil\x1b[2J", "role"), ("good", "role\x07")):
            with pytest.raises(QueueError, match="cannot be printed"):
                queue.client(name, role)
        with queue.client("good", "role") as client:
            client.stop("red\x1b[31m").result(5.0)
            assert main(["status", "--controller", queue.url]) == 0
    text = capsys.readouterr().out
    assert "good#0 role" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1 << 30, "1.1 GB"), (999_999, "1.0 MB"), (999_949, "999.9 kB"), (10**22, "10000.0 EB")],
)
def test_bytes_are_told_in_powers_of_a_thousand(nbytes: int, text: str) -> None:
    assert status.sized(nbytes) == text


# ------------------------------------------------------------ what a stage waits for

SPEC = TopicSpec(
    name="t",
    model="m",
    columns=(
        Column("prompt", "int32", "per_token", "source", shared=True),
        Column("answer", "int32", "per_token", "rollout"),
        Column("score", "float32", "scalar", "reward"),
        Column("note", "uint8", "text", "rollout", optional=True),
        Column("advantage", "float32", "scalar", "advantage"),
    ),
    consumers=(
        Consumer("reward", inputs=("prompt", "answer"), outputs=("score",)),
        Consumer("advantage", inputs=("score", "note"), outputs=("advantage",)),
        Consumer("train", inputs=("prompt", "advantage"), unit="group", terminal=True),
    ),
    window=Window(batch=2, staleness=0),
)


def topic(reward: tuple[int, int] = (0, 0), permits: int = 2, prompts: int = 0, **ledger: int) -> TopicStatus:
    """`reward`: rows leased and ready there."""
    consumers = [ConsumerStatus("reward", 0, *reward, []), ConsumerStatus("advantage", 0, 0, 0, []), ConsumerStatus("train", 0, 0, 0, [])]
    return TopicStatus("t", 0, ledger, permits, 2, sum(ledger.values()), prompts, None, 0, 0, consumers, "", spec=SPEC)


@pytest.mark.parametrize(
    ("state", "consumer", "told"),
    [
        (topic(), 0, "prompts"),
        (topic(prompts=3), 0, "a producer that pulls a prompt"),
        (topic(permits=0, prompts=3, complete=2), 0, "a permit (2 groups are open)"),
        (topic(admitted=1, generating=2), 0, "answer of rollout (2 groups begun, 1 admitted)"),
        (topic(reward=(4, 3)), 1, "score of reward (3 rows ready there, 4 leased)"),
        (topic(reward=(4, 0)), 2, "score of reward (4 leased)"),
        (topic(generating=1), 2, "answer of rollout (1 groups begun)"),
        (topic(reward=(0, 1), generating=1), 0, ""),
        (msgspec.structs.replace(topic(), over=True), 2, ""),
    ],
)
def test_a_stage_waits_for_the_first_before_it_that_has_something_to_do(state: TopicStatus, consumer: int, told: str) -> None:
    assert waits_for(state, state.consumers[consumer]) == told


def test_stages_that_wait_for_each_other_are_told_too() -> None:
    circle = (
        Consumer("reward", inputs=("advantage",), outputs=("score",)),
        Consumer("advantage", inputs=("score",), outputs=("advantage",)),
        Consumer("train", inputs=("advantage",), unit="group", terminal=True),
    )
    state = msgspec.structs.replace(topic(permits=0, complete=2), spec=msgspec.structs.replace(SPEC, consumers=circle))
    assert waits_for(state, state.consumers[2]) == "a permit (2 groups are open)"


# ------------------------------------------------------------ what is counted


def test_leases_that_run_out_groups_that_come_back_and_messages_of_nobody_are_counted() -> None:
    with LocalQueue([queue_run.spec()], lease_s=0.3, heartbeat_s=300.0) as queue, queue.client("me", "all") as me, Probe(queue.url) as probe:
        put_prompts(me, POLICY, 2, target=2)
        first, _ = me.pull(POLICY, loaded=0, limit=2).result(5.0).groups
        finish(me, POLICY, [first])
        assert len(me.take(POLICY, "reward", limit=2).result(5.0).rows) == 2
        again = me.take(POLICY, "reward", limit=2, wait_s=5.0).result(10.0)  # granted when the first lease has run out, and no earlier
        assert len(again.rows) == 2
        assert me.pull(POLICY, loaded=0, limit=1, wait_s=5.0).result(10.0).groups  # the group that made no progress
        with zmq.Context.instance().socket(zmq.DEALER) as stranger:
            stranger.connect(queue.url)
            stranger.send(b"\xc1 no request")
            assert stranger.poll(5000)
        report = probe.ask(5.0).status
    topic = report.topics[0]
    assert (topic.lost_attempts, topic.consumers[0].expired_leases, topic.consumers[1].expired_leases) == (1, 1, 0)
    assert report.traffic.refused == {"malformed": 1}


def test_questions_that_get_no_answer_leave_no_descriptors() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    with Probe("tcp://127.0.0.1:9") as probe:
        for _ in range(2):
            with pytest.raises(QueueTimeout):
                probe.ask(0.02)
        before = descriptors()
        for _ in range(20):
            with pytest.raises(QueueTimeout):
                probe.ask(0.02)
        deadline = time.monotonic() + 5.0  # zmq closes in a thread of its own
        while descriptors() > before + 8:
            assert time.monotonic() < deadline
            threading.Event().wait(0.05)
