"""A queue by one command: what it starts, how it ends, and that nothing is left, however it ended."""

from __future__ import annotations

import random
import re
import signal
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
from scripted import metric, scrape
from serving import EXAMPLE, Serving, changed, ended_by, gone

from transfer_queue import keys
from transfer_queue.__main__ import main
from transfer_queue.client import QueueClient
from transfer_queue.errors import QueueRefused, QueueTimeout
from transfer_queue.messages import ModelVersion, RowPut
from transfer_queue.operation.parser import LOOPBACK
from transfer_queue.operation.serve import ServeOptions, Service
from transfer_queue.security import Security


def train(client: QueueClient, count: int) -> int:
    """One batch of `count` groups from prompts to commit; returns the version."""
    spec = client.topic("sums")
    client.put_prompts("sums", list(range(count)), {"question": ["1 + 1"] * count}, cursor=count)
    client.close_prompts("sums", count).result(5)
    groups = client.pull("sums", loaded=0, limit=count).result(5).groups
    rows = [RowPut(group.gid, group.fence, 0, {}, 1, 0, 0) for group in groups]
    client.put_rows("sums", rows, {group.gid: 1 for group in groups}, {"answer": ["2"] * count})
    taken = client.take("sums", "grade", limit=count).result(5)
    client.write_back("sums", "grade", taken.lease, taken.rows.keys(), {"score": np.ones(count, "float32")})
    batch = client.take("sums", "train", limit=count, step=0).result(5)
    assert client.read(batch.rows, ["answer", "score"], spec)["answer"] == ["2"] * count
    return client.commit("sums", "train", "m", 0, 0, [batch.lease]).result(5).version


def became(client: QueueClient, state: str) -> str:
    """Waits for it; the reason."""
    directive = client.watch(wait_s=0.0).result(5).directive
    deadline = time.monotonic() + 10
    while directive.state != state:
        assert time.monotonic() < deadline, directive
        directive = client.watch(seen=directive.revision, wait_s=1.0).result(5).directive
    return directive.reason


@pytest.mark.e2e
def test_a_queue_serves_until_its_topics_are_over_and_ends_with_zero() -> None:
    with Serving(EXAMPLE, "--shards", "2", "--metrics", "0") as serving:
        url = serving.until("controller at ")
        assert [re.sub(r"\d+$", "", serving.line()) for _ in range(2)] == ["shard-0 at tcp://127.0.0.1:", "shard-1 at tcp://127.0.0.1:"]
        metrics = serving.until("metrics at ")
        children = serving.children()
        assert len(children) == 3
        with QueueClient.connect(url, name="me", role="all") as client:
            assert train(client, 2) == 1
            found = scrape(metrics)
            assert found[metric("trained_groups_total", topic="sums")] == 2
            assert found[metric("topic_over", topic="sums")] == 1
            client.published(ModelVersion("m", 0, 1)).result(5)
            client.leave().result(5)
        assert serving.until("ended: ") == "completed"
        assert serving.ends() == (0, "")
        assert gone(children)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.e2e)])
def test_a_signal_tells_the_members_and_then_ends_everything(number: signal.Signals) -> None:
    with Serving(EXAMPLE) as serving:
        url = serving.until("controller at ")
        serving.until("shard-0 at ")
        children = serving.children()
        with QueueClient.connect(url, name="me", role="all") as client:
            pending = client.take("sums", "grade", limit=1, wait_s=60.0)
            client.status().result(5)  # the take before it is parked
            serving.process.send_signal(number)
            assert pending.result(10).done
            directive = client.watch(wait_s=0.0).result(5).directive
            assert (directive.state, directive.reason) == ("stop", "drained")
            client.leave().result(5)
        assert serving.until("ended: ") == "drained"
        assert serving.ends() == (0, "")
        assert gone(children)


@pytest.mark.e2e
def test_a_supervisor_that_tells_every_process_at_once_gets_the_same_end() -> None:
    with Serving(EXAMPLE, "--shards", "2", "--metrics", "0") as serving:
        url = serving.until("controller at ")
        serving.until("metrics at ")
        children = serving.children()
        with QueueClient.connect(url, name="me", role="all") as client:
            client.put_prompts("sums", [0], {"question": ["1 + 1"]}, cursor=1)
            (group,) = client.pull("sums", loaded=0, limit=1).result(5).groups
            for process in (*children, serving.process):
                process.send_signal(signal.SIGTERM)
            became(client, "drain")
            threading.Event().wait(1.5)  # beyond a shard's next look at the run
            found = client.read_shared([group], ["question"], client.topic("sums"))
            assert found["question"] == ["1 + 1"], "who has to finish something still can"
            row = RowPut(group.gid, group.fence, 0, {}, 1, 0, 0)
            assert client.put_rows("sums", [row], {group.gid: 1}, {"answer": ["2"]}).closed == [], "also where every shard was told to end"
            assert became(client, "stop") == "drained"
            client.leave().result(5)
        assert serving.until("ended: ") == "drained"
        assert serving.ends() == (0, "")
        assert gone(children)


@pytest.mark.e2e
def test_a_signal_at_any_moment_of_the_start_leaves_nothing(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    left = tmp_path / "tmp"
    left.mkdir()
    for delay_s in sorted(random.Random(seed).uniform(0.0, 1.2) for _ in range(4)):
        with Serving(EXAMPLE, "--shards", "2", "--metrics", "0", TMPDIR=str(left)) as serving:
            threading.Event().wait(delay_s)
            code, said, _ = ended_by(serving, signal.SIGTERM)
        assert code in (0, -signal.SIGTERM), f"{delay_s} s: {said}"  # the latter before it started anything
        ours = [process for process in psutil.process_iter(["environ"]) if (process.info["environ"] or {}).get("TMPDIR") == str(left)]
        assert gone(ours, 1.0), ours  # one that was being started notices
        assert list(left.iterdir()) == []


@pytest.mark.e2e
def test_members_that_do_not_leave_cannot_hold_it_and_asked_twice_it_ends_at_once() -> None:
    with Serving(EXAMPLE, "--drain-s", "60") as serving:
        url = serving.until("controller at ")
        serving.until("shard-0 at ")
        children = serving.children()
        with QueueClient.connect(url, name="me", role="all"):
            serving.process.send_signal(signal.SIGTERM)
            serving.until("stopping (once more to end at once)")
            code, _, took = ended_by(serving, signal.SIGTERM)
            assert code == 1
            assert took < 5
        assert gone(children)
    with Serving(EXAMPLE, "--drain-s", "0.5") as serving:
        url = serving.until("controller at ")
        serving.until("shard-0 at ")
        with QueueClient.connect(url, name="me", role="all"):
            code, _, took = ended_by(serving, signal.SIGTERM)
            assert code == 0
            assert took < 5


@pytest.mark.e2e
def test_the_death_of_a_shard_ends_the_run_at_once_and_says_so() -> None:
    with Serving(EXAMPLE, "--shards", "2") as serving:
        url = serving.until("controller at ")
        serving.until("shard-1 at ")
        children = serving.children()
        with QueueClient.connect(url, name="me", role="all") as client:
            children[2].kill()
            directive = client.watch(seen=client.watch(wait_s=0.0).result(5).directive.revision, wait_s=20.0).result(25).directive
            assert directive.state == "stop"
            assert re.match(r"shard-[01] died: killed by signal 9", directive.reason)
            client.leave().result(5)
        assert re.match(r"shard-[01] died: killed by signal 9", serving.until("ended: "))
        assert serving.ends()[0] == 1
        assert gone(children)


@pytest.mark.e2e
def test_the_death_of_the_controller_ends_the_shards() -> None:
    with Serving(EXAMPLE) as serving:
        serving.until("shard-0 at ")
        children = serving.children()
        children[0].kill()
        assert serving.until("controller died: ") == "killed by signal 9, Killed"
        assert serving.ends()[0] == 1
        assert gone(children)


@pytest.mark.e2e
def test_nothing_outlives_the_command_when_it_is_killed() -> None:
    with Serving(EXAMPLE) as serving:
        serving.until("shard-0 at ")
        children = serving.children()
        serving.process.kill()
        assert gone(children, 10.0)


@pytest.mark.e2e
def test_a_stall_ends_it_with_the_report_of_whose_move_it_was(tmp_path: Path) -> None:
    file = tmp_path / "queue.toml"
    file.write_text(EXAMPLE.read_text().replace("stall_s = 600.0", "stall_s = 1.0"))
    with Serving(file, "--drain-s", "0.5") as serving:
        url = serving.until("controller at ")
        serving.until("shard-0 at ")
        with QueueClient.connect(url, name="me", role="all") as client:
            client.put_prompts("sums", [0], {"question": ["1 + 1"]}, cursor=1)
            assert re.match(r"stall: no progress for 1\.\d s: stage ", serving.until("ended: "))
        code, said = serving.ends()
    assert code == 1
    assert "whose move: stage" in said
    assert re.search(r"writer +0 ready .*nobody serves it", said)


@pytest.mark.e2e
def test_with_keys_only_those_who_have_them_get_in(tmp_path: Path) -> None:
    server, client = keys.write(tmp_path)
    with Serving(EXAMPLE, "--key", str(server), "--metrics", "0") as serving:
        url = serving.until("controller at ")
        metrics = serving.until("metrics at ")
        with QueueClient.connect(url, name="me", role="all", security=Security.load(client)) as member:
            assert train(member, 2) == 1
            member.leave().result(5)
        assert scrape(metrics)[metric("shard_up", shard="0")] == 1
        with pytest.raises((QueueRefused, QueueTimeout), match="key"):  # as the greetings of the two sides happen to cross
            QueueClient.connect(url, name="stranger", role="all", timeout_s=1)
        assert ended_by(serving, signal.SIGTERM)[0] == 0


# ------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--bind", "tcp://0.0.0.0:0"], "bind='tcp://0.0.0.0:0': beyond loopback"),
        (["--shard-bind", "tcp://10.0.0.1:0"], "bind='tcp://10.0.0.1:0': beyond loopback"),
        (["--metrics", "here"], "metrics='here': it names host and port"),
        (["--metrics", "70000"], "metrics='70000': '70000' is no port"),
        (["--key", "nowhere.key"], "nowhere.key"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_starts(options: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(EXAMPLE), *options]) == 1
    assert told in capsys.readouterr().err


def test_a_topic_that_cannot_work_is_told_by_the_controller(tmp_path: Path) -> None:
    with Serving(changed(tmp_path, "terminal = true", "terminal = false")) as serving:
        code, said = serving.ends()
    assert code == 1
    assert "topic 'sums' has no terminal consumer" in said
    assert "error: controller ended before it was up (exit code 1); it says why above" in said


def test_budgets_beyond_the_room_of_the_shards_are_warned_of() -> None:
    said: list[str] = []
    options = ServeOptions(EXAMPLE, 2, LOOPBACK, LOOPBACK, 1 << 30, 0, None, None, 10.0)
    Service(options, said.append)
    assert said == [
        f"warning: the topics' budget_bytes are {1 << 32} together, {1 << 31} fit into the shards: lower them, or add shards or capacity"
    ]
    Service(msgspec.structs.replace(options, shards=4), said.append)
    assert len(said) == 1
