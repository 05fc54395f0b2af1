"""Who is let in, and what may leave the machine."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import msgspec
import pytest
import zmq

from transfer_queue import keys
from transfer_queue.__main__ import main
from transfer_queue.security import Security, bind, check_bind, is_loopback


@contextlib.contextmanager
def echo(security: Security | None) -> Iterator[tuple[zmq.Socket[bytes], str, str]]:
    """A bound ROUTER with its endpoint and public key."""
    with zmq.Context.instance().socket(zmq.ROUTER) as server:
        server.linger = 0
        yield server, *bind(server, "tcp://127.0.0.1:0", security)


def heard(server: zmq.Socket[bytes], url: str, key: str, security: Security | None, timeout_ms: int) -> bool:
    """Whether a message of a client with these keys reaches the server."""
    with zmq.Context.instance().socket(zmq.DEALER) as client:
        client.linger = 0
        if security is not None:
            security.client(client, key)
        client.connect(url)
        with contextlib.suppress(zmq.Again):  # refused already: there is no connection to send on
            client.send(b"hello", zmq.NOBLOCK)
        return bool(server.poll(timeout_ms)) and server.recv_multipart()[1] == b"hello"


def test_the_right_key_is_let_in_and_every_other_is_not():
    run, other = keys.make(), keys.make()
    stranger = msgspec.structs.replace(other.worker(), server_public=run.server_public)  # knows the server, has a pair of its own
    with echo(run) as (server, url, key):
        assert key == run.server_public
        assert heard(server, url, key, run.worker(), 5000)
        assert not heard(server, url, key, stranger, 300)
        assert not heard(server, url, key, None, 300)
        assert not heard(server, url, other.server_public, run.worker(), 300)
        assert heard(server, url, key, run.worker(), 5000)


def test_a_server_without_the_controllers_secret_makes_a_pair_of_its_own():
    worker = keys.make().worker()
    with echo(worker) as (server, url, key):
        assert key != worker.server_public
        assert heard(server, url, key, worker, 5000)
        assert not heard(server, url, worker.server_public, worker, 300)


def test_two_runs_in_one_process_keep_their_keys_apart():
    first, second = keys.make(), keys.make()
    with echo(first) as (a, a_url, a_key), echo(second) as (b, b_url, b_key):
        assert heard(a, a_url, a_key, first.worker(), 5000)
        assert heard(b, b_url, b_key, second.worker(), 5000)
        assert not heard(a, a_url, a_key, second.worker(), 300)


def test_a_curve_server_of_somebody_else_in_the_process_keeps_its_own_rules():
    run = keys.make()
    with echo(run), zmq.Context.instance().socket(zmq.ROUTER) as other:  # our handler is there, and zmq asks it about every CURVE server
        public, other.curve_secretkey = zmq.curve_keypair()
        other.linger, other.curve_server = 0, True
        other.bind("tcp://127.0.0.1:0")
        assert heard(other, other.last_endpoint.decode(), public.decode(), run.worker(), 5000)


def test_a_client_with_keys_does_not_talk_to_a_server_without():
    with echo(None) as (server, url, _):
        assert heard(server, url, "", None, 5000)
        run = keys.make()
        assert not heard(server, url, run.server_public, run.worker(), 300)


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("tcp://127.0.0.1:0", True),
        ("tcp://127.8.9.10:77", True),
        ("tcp://[::1]:0", True),
        ("tcp://localhost:0", True),
        ("ipc:///run/x", True),
        ("inproc://x", True),
        ("tcp://*:0", False),
        ("tcp://0.0.0.0:0", False),
        ("tcp://10.0.0.1:0", False),
        ("tcp://[::]:0", False),
        ("tcp://eth0:0", False),
        ("tcp://host.example:0", False),
        ("tcp://127.0.0.1.example:0", False),
        ("epgm://127.0.0.1;239.192.1.1:5555", False),
    ],
)
def test_loopback_is_what_cannot_leave_the_machine(endpoint, expected):
    assert is_loopback(endpoint) == expected


def test_beyond_loopback_keys_are_required_and_the_message_says_how_to_get_them():
    with pytest.raises(ValueError, match=r"bind='tcp://0.0.0.0:0'.*python -m transfer_queue keys DIR"):
        check_bind("tcp://0.0.0.0:0", None)
    check_bind("tcp://0.0.0.0:0", keys.make())


def test_a_port_that_is_taken_is_named():
    with echo(None) as (_, url, _), zmq.Context.instance().socket(zmq.ROUTER) as second, pytest.raises(OSError, match=f"bind='{url}' failed"):
        bind(second, url, None)


def test_the_keys_command_writes_two_private_files_and_never_replaces_them(tmp_path, capsys):
    assert main(["keys", str(tmp_path / "run")]) == 0
    server, client = Security.load(tmp_path / "run" / "server.key"), Security.load(tmp_path / "run" / "client.key")
    assert client == server.worker()
    assert server.server_secret not in (tmp_path / "run" / "client.key").read_text()
    assert [path.stat().st_mode & 0o777 for path in sorted((tmp_path / "run").iterdir())] == [0o600, 0o600]
    assert main(["keys", str(tmp_path / "run")]) == 1
    assert "are there already" in capsys.readouterr().err
    assert Security.load(tmp_path / "run" / "server.key") == server


def test_a_key_file_that_others_may_read_is_refused(tmp_path):
    _, client = keys.write(tmp_path)
    client.chmod(0o640)
    with pytest.raises(PermissionError, match="chmod 600"):
        Security.load(client)


def test_a_damaged_key_file_is_named(tmp_path):
    path = tmp_path / "client.key"
    path.write_text('{"server_public": 3}')
    path.chmod(0o600)
    with pytest.raises(ValueError, match=r"client\.key"):
        Security.load(path)


def test_secrets_are_not_printed():
    run = keys.make()
    assert run.server_secret not in repr(run)
    assert run.client_secret not in f"{run}"


def test_a_refused_client_cannot_hold_up_the_others():
    run = keys.make()
    with echo(run) as (server, url, key):
        strangers = [zmq.Context.instance().socket(zmq.DEALER) for _ in range(5)]
        for stranger in strangers:
            msgspec.structs.replace(keys.make().worker(), server_public=key).client(stranger, key)
            stranger.linger = 0
            stranger.connect(url)
        started = time.monotonic()
        assert heard(server, url, key, run.worker(), 5000)
        assert time.monotonic() - started < 3.0
        for stranger in strangers:
            stranger.close()
