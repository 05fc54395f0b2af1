"""The endpoint as Prometheus sees it: scraped over HTTP, read with the client's own parser."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import urllib.request
from pathlib import Path
from urllib.error import URLError

import pytest
from prometheus_client.parser import text_string_to_metric_families

from asyncflow.config.errors import ConfigError
from asyncflow.observe.writers.configured import configured
from asyncflow.observe.writers.prometheus import URL_FILE, PrometheusWriter
from tests.observe.live.run_files import append, evaluated, joined, run_config, spent, step
from tests.observe.writers.own import Words
from transfer_queue.operation import endpoint

pytestmark = pytest.mark.tools

Sample = tuple[str, tuple[tuple[str, str], ...]]


def scrape(url: str) -> dict[Sample, float]:
    with urllib.request.urlopen(url, timeout=5) as answer:
        text = answer.read().decode()
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in text_string_to_metric_families(text) for s in family.samples}


def test_everything_is_there_under_the_names_of_the_field(tmp_path: Path) -> None:
    config = run_config(tmp_path)
    writer = PrometheusWriter(config, config.run_dir, "127.0.0.1:0")
    assert (config.run_dir / URL_FILE).read_text() == f"{writer.url}\n"
    writer.step(step(1))
    writer.step(step(2, reward_mean=0.0))
    writer.evaluation(2, 0.5, 3.0)
    writer.evaluation(1, 0.25, 4.0)  # an older version that was evaluated later is not the newest
    writer.worker_time(spent("rollout", 7.0, 1.0))
    writer.worker_time(spent("rollout", 7.0, 1.0, 10.0, 20.0))
    found = scrape(writer.url)
    plain = {name.removeprefix("asyncflow_"): value for (name, labels), value in found.items() if not labels}
    assert plain["version"] == 2
    assert plain["target_version"] == 120
    assert plain["staleness_bound_versions"] == 2
    assert plain["staleness_max_versions"] == 2
    assert plain["reward_mean"] == 0
    assert plain["permits_free"] == 32
    assert plain["trained_tokens_total"] == 4000
    assert plain["trained_groups_total"] == 64
    assert (plain["evaluation_accuracy"], plain["evaluation_version"]) == (0.5, 2)
    assert found["asyncflow_groups", (("state", "generating"),)] == 31
    assert found["asyncflow_groups", (("state", "complete"),)] == 0
    assert found["asyncflow_dropped_groups_total", (("reason", "stale"),)] == 3
    assert found["asyncflow_stage_ready_rows", (("stage", "train"),)] == 120
    assert found["asyncflow_stage_done_rows_total", (("stage", "train"),)] == 7000
    for activity, seconds in {"busy": 14.0, "wait": 4.0, "paused": 2.0}.items():
        assert found["asyncflow_worker_seconds_total", (("activity", activity), ("role", "rollout"))] == seconds
    writer.close(None)
    assert not (config.run_dir / URL_FILE).exists()
    with pytest.raises(URLError):
        scrape(writer.url)


def test_what_was_not_measured_has_no_sample(tmp_path: Path) -> None:
    config = run_config(tmp_path, "staleness=null")
    writer = PrometheusWriter(config, config.run_dir, "[::1]:0")
    names = {name for name, _ in scrape(writer.url)}
    assert "asyncflow_version" in names
    assert not names & {"asyncflow_staleness_bound_versions", "asyncflow_evaluation_accuracy", "asyncflow_reward_mean"}
    writer.step(step(1, reward_mean=None, permits=-1))
    names = {name for name, _ in scrape(writer.url)}
    assert not names & {"asyncflow_permits_free", "asyncflow_reward_mean"}
    writer.close(None)


def test_a_port_in_use_is_told_before_anything_starts_and_no_thread_stays(tmp_path: Path) -> None:
    before = threading.active_count()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        config = run_config(tmp_path, f"observe.prometheus_bind={bind}")
        with pytest.raises(ConfigError, match=rf"observe.prometheus_bind = '{bind}': .*in use.*Fix: observe.prometheus_bind=127.0.0.1:0"):
            configured(config, Words().say)
    assert threading.active_count() == before


def test_a_host_that_is_not_of_this_machine_is_told(tmp_path: Path) -> None:
    config = run_config(tmp_path, "observe.prometheus_bind=192.0.2.1:0")
    with pytest.raises(ConfigError, match=r"observe.prometheus_bind = '192.0.2.1:0'"):
        configured(config, Words().say)


def test_a_slow_scraper_holds_nobody_up(tmp_path: Path) -> None:
    config = run_config(tmp_path)
    writer = PrometheusWriter(config, config.run_dir, "127.0.0.1:0")
    host, port = writer.url.removeprefix("http://").removesuffix("/metrics").rsplit(":", 1)
    with socket.create_connection((host, int(port))) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\n")  # and never the rest
        writer.step(step(1))
        assert scrape(writer.url)["asyncflow_version", ()] == 1
    writer.close(None)


def test_a_run_feeds_its_endpoint_and_ends_it(tmp_path: Path) -> None:
    words, config = Words(), run_config(tmp_path, "observe.prometheus_bind=127.0.0.1:0")
    with configured(config, words.say) as feed:
        url = (config.run_dir / URL_FILE).read_text().strip()
        assert words.lines == [f"metrics for Prometheus at {url}"]
        append(config.run_dir, joined("rollout"), step(7), evaluated(0, 0.25, 1.0))
        for _ in range(100):
            found = scrape(url)
            if found["asyncflow_version", ()] == 7:
                break
            feed._thread.join(0.05)
        assert found["asyncflow_version", ()] == 7
        feed.close(None)
    assert not (config.run_dir / URL_FILE).exists()
    assert words.lines[1:] == []


def test_clients_that_connect_and_hang_cost_few_threads_and_none_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "REQUEST_S", 0.5)
    monkeypatch.setattr(endpoint._Handler, "timeout", 0.5)
    config = run_config(tmp_path)
    before = threading.active_count()
    writer = PrometheusWriter(config, config.run_dir, "127.0.0.1:0")
    hosts = writer.url.split("/")[2].split(":")
    clients = [socket.create_connection((hosts[0], int(hosts[1])), timeout=5) for _ in range(3 * endpoint.CLIENTS)]
    try:
        for client in clients[::2]:
            with contextlib.suppress(OSError):
                client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x")  # and no end
        assert threading.active_count() <= before + 2 * endpoint.CLIENTS + 2  # a client has a thread and a timer
        deadline = time.monotonic() + 20
        while threading.active_count() > before + 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert threading.active_count() == before + 1
        assert scrape(writer.url)  # others are served
    finally:
        for client in clients:
            client.close()
        writer.close(None)
