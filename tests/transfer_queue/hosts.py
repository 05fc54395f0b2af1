"""A queue over two hosts on one machine: the shards run behind a veth pair with CURVE keys, one of them with PIDs and a /proc of its own.

    unshare --user --map-root-user --net --mount --pid --fork --mount-proc python -m tests.transfer_queue.hosts FOLDER

Prints one JSON line: which way bytes went to each shard, and whether what was read is what was written.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from transfer_queue import keys
from transfer_queue import messages as m
from transfer_queue.client import QueueClient
from transfer_queue.controller import server as controller
from transfer_queue.controller.core import CoreConfig
from transfer_queue.local import Events
from transfer_queue.security import Security
from transfer_queue.shard import server as shard

COLUMN = m.Column("ids", "int32", "per_token", "rollout")
SPEC = m.TopicSpec(
    name="t", model="p", columns=(COLUMN,), consumers=(m.Consumer("trainer", inputs=("ids",), unit="group", terminal=True),), window=m.Window(1, None)
)
OWN_PROCESSES = ["--pid", "--fork", "--kill-child", "--mount-proc"]
SHARDS = [OWN_PROCESSES, []]  # how each differs from us besides its network and its mounts


def serve_controller(key: Path, ip: str) -> str:
    up: list[str] = []
    ready = threading.Event()

    def tell(url: str) -> None:
        up.append(url)
        ready.set()

    def run() -> None:
        controller.serve(CoreConfig(topics=[SPEC]), Events, bind=f"tcp://{ip}:0", security=Security.load(key), ready=tell)

    threading.Thread(target=run, daemon=True).start()
    assert ready.wait(30)
    return up[0]


@contextmanager
def shards(keeper: int, url: str, key: Path) -> Iterator[None]:
    """In the network of `keeper`; up when entered, killed when left."""
    from tests.pipeline.namespaces import address

    started = []
    try:
        for index, own in enumerate(SHARDS):
            place = ["nsenter", f"--net=/proc/{keeper}/ns/net", "unshare", "--mount", *own]
            command = [*place, sys.executable, "-m", "tests.transfer_queue.hosts", "--shard", f"shard-{index}", url, str(key), address(1, 2)]
            started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("tcp://")
        yield
    finally:
        for process in started:
            process.kill()
            process.wait(10)


def read(client: QueueClient, slices: list[m.Slice]) -> np.ndarray:
    rows = [m.RowRef(gid, 0, 0, 0, [found]) for gid, found in enumerate(slices)]
    return client.read(rows, ["ids"], SPEC)["ids"].dense()


def exchange(client: QueueClient) -> bool:
    """Small and large, whole and mixed over the shards."""
    same = []
    for width in (10, 100_000):
        put = np.random.default_rng(width).integers(0, 1 << 30, (24, width), dtype="int32")
        slices = [found for part in np.split(put, 4) for found in client.write(range(6), {"ids": part})["ids"]]
        same.append({found.shard for found in slices} == {0, 1})
        order = np.random.default_rng(1).permutation(24)
        same.append(np.array_equal(read(client, [slices[row] for row in order]), put[order]))
        same += [np.array_equal(read(client, slices[first : first + 6]), put[first : first + 6]) for first in range(0, 24, 6)]
    return all(same)


def main(folder: Path) -> None:
    from pyroute2 import IPRoute

    from tests.pipeline.namespaces import MIDDLE, make_host, raise_link

    with IPRoute() as route:
        raise_link(route, "lo", None)
    keeper = make_host(1)
    server_key, client_key = keys.write(folder)
    url = serve_controller(Path(server_key), MIDDLE)
    security = Security.load(client_key)
    with shards(keeper, url, Path(client_key)), QueueClient.connect(url, name="a", role="rollout", security=security) as client:
        same = exchange(client)
        print(json.dumps({"paths": {str(index): path for index, path in client.paths.items()}, "same": same}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--shard":
        name, url, key, ip = sys.argv[2:]
        shard.serve(name, url, Security.load(key), bind=f"tcp://{ip}:0", ready=lambda endpoint: print(endpoint, flush=True))
    else:
        main(Path(sys.argv[1]))
