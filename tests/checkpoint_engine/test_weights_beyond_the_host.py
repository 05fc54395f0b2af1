"""Receivers and trainers that share no memory with the publisher, and keys on the way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import zmq
from ce_helpers import eventually, plain_weights, policy, running_publisher

from checkpoint_engine.digest import weights_digest
from checkpoint_engine.publisher_client import PublisherClient, PublisherGone
from checkpoint_engine.receiver import Receiver
from checkpoint_engine.wire import Secure
from tests.isolation import require_namespaces

PULL = """
import sys, threading
from checkpoint_engine.receiver import Receiver
ready = threading.Event()
receiver = Receiver("elsewhere", sys.argv[1], on_ready=lambda weights: ready.set())
assert ready.wait(30)
print(receiver.latest().digest, receiver.counters.by_pull_shared, receiver.counters.by_pull_bytes)
receiver.close()
"""
PUSH = """
import sys
from checkpoint_engine.publisher_client import PublisherClient
from checkpoint_engine.weights_id import WeightsId
sys.path.insert(0, sys.argv[2])
from ce_helpers import plain_weights
client = PublisherClient(sys.argv[1])
client.publish(WeightsId("policy", 0, 1), plain_weights(1, 3, 1_500_000), wait_s=5)
print(client.wait_published(WeightsId("policy", 0, 1), 10).digest, client.path)
"""
NAMESPACE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount", "--mount-proc"]


def in_another_pid_namespace(script: str, *arguments: str) -> list[str]:
    root = str(Path(__file__).parents[2])
    command = [*NAMESPACE, sys.executable, "-c", script, *arguments]
    environment = {"PYTHONPATH": root, "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.e2e
def test_across_pid_namespaces_bytes_travel_and_no_memory_is_shared() -> None:
    require_namespaces()
    with running_publisher() as publisher:
        digest, path = in_another_pid_namespace(PUSH, publisher.endpoint, str(Path(__file__).parent))
        assert (digest, path) == (weights_digest(plain_weights(1, 3, 1_500_000)), "bytes")
        assert in_another_pid_namespace(PULL, publisher.endpoint) == [digest, "0", "1"]


class Keys:
    """Plain CURVE without a list of allowed clients: what the engine asks of `secure`, no more."""

    def __init__(self) -> None:
        self.public, self.secret = zmq.curve_keypair()

    def server(self, socket: zmq.Socket[bytes]) -> str:
        socket.curve_secretkey, socket.curve_publickey, socket.curve_server = self.secret, self.public, True
        return self.public.decode()

    def client(self, socket: zmq.Socket[bytes], server_key: str) -> None:
        public, secret = zmq.curve_keypair()
        socket.curve_serverkey, socket.curve_publickey, socket.curve_secretkey = server_key.encode(), public, secret


def test_with_keys_weights_travel_and_without_them_or_with_others_nothing_does() -> None:
    keys: Secure = Keys()
    with running_publisher(secure=keys) as publisher:
        address, key = publisher.endpoint.split(" ")
        client = PublisherClient(publisher.endpoint, keys)
        client.publish(policy(0), plain_weights(0))
        weights = client.wait_published(policy(0), 5)
        receiver = Receiver("r", publisher.endpoint, keys)
        eventually(lambda: receiver.latest() == weights)
        with pytest.raises(ValueError, match="wants keys"):
            PublisherClient(publisher.endpoint)
        other = zmq.curve_keypair()[0].decode()
        for stranger in (PublisherClient(address, reply_s=0.5), PublisherClient(f"{address} {other}", keys, reply_s=0.5)):
            with pytest.raises(PublisherGone, match="did not answer"):
                stranger.publish(policy(1), plain_weights(1))
            stranger.close()
        assert key == keys.public.decode()  # type: ignore[attr-defined]
        receiver.close()
        client.close()
