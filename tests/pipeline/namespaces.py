"""Three hosts on one machine: network, mount and PID namespaces joined by veth pairs. Inside a user namespace of its own, so it needs no root.

    unshare --user --map-root-user --net --mount --pid --fork --mount-proc python -m tests.pipeline.namespaces FOLDER

The middle host has the launcher, controller, shard, publisher and the other workers; the rollout and the trainer each have a host of their own
and get an endpoint and a key, nothing else. Prints one JSON line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
from pyroute2 import IPRoute

from asyncflow.config import RunConfig
from asyncflow.contracts.worker import WorkerArgs
from asyncflow.launch.child import ChildSpec
from asyncflow.launch.launcher import Workers
from asyncflow.launch.plan import worker_specs
from tests.pipeline.harness import configure, run_pipeline

REMOTE = {"rollout": 1, "trainer": 2}  # role → number of its host
MIDDLE = "10.77.1.1"  # the middle host's address that everybody is told


def address(host: int, side: int) -> str:
    return f"10.77.{host}.{side}"


def make_host(host: int) -> int:
    """A network namespace with one end of a veth pair. Returns the pid of the process that keeps it."""
    keeper = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo up; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert keeper.stdout is not None
    assert keeper.stdout.readline() == b"up\n"
    with IPRoute() as route:
        route.link("add", ifname=f"veth{host}", kind="veth", peer={"ifname": "eth0", "net_ns_pid": keeper.pid})
        raise_link(route, f"veth{host}", address(host, 1))
    inside = [sys.executable, "-m", "tests.pipeline.namespaces", "--inside", str(host)]
    subprocess.run(["nsenter", f"--net=/proc/{keeper.pid}/ns/net", *inside], check=True, timeout=60)
    return keeper.pid


def raise_link(route: IPRoute, name: str, ip: str | None) -> None:
    index = route.link_lookup(ifname=name)[0]
    if ip is not None:
        route.addr("add", index=index, address=ip, prefixlen=24)
    route.link("set", index=index, state="up")


def finish_host(host: int) -> None:
    """In the new namespace: addresses, and a route to the middle host's other networks."""
    with IPRoute() as route:
        raise_link(route, "lo", None)
        raise_link(route, "eth0", address(host, 2))
        route.route("add", dst="default", gateway=address(host, 1))


def enter_host(keeper: int, args: WorkerArgs) -> int:
    """Process entry on the middle host: become the worker's command on its own host, with mounts and PIDs of its own."""
    assert args.key is not None
    worker = [sys.executable, "-m", "asyncflow.worker", "--role", args.role, "--name", args.name, "--controller", args.controller, "--key", args.key]
    own = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    os.execvp("nsenter", ["nsenter", f"--net=/proc/{keeper}/ns/net", *own, *worker])


def remote_workers(keepers: dict[str, int]) -> Workers:
    def workers(config: RunConfig, url: str, key: str | None) -> list[ChildSpec]:
        def placed(spec: ChildSpec) -> ChildSpec:
            if spec.role not in keepers:
                return spec
            return msgspec.structs.replace(spec, entry="tests.pipeline.namespaces:enter_host", args=(keepers[spec.role], *spec.args))

        return [placed(spec) for spec in worker_specs(config, url, key)]

    return workers


def main(folder: Path) -> None:
    with IPRoute() as route:
        raise_link(route, "lo", None)
    keepers = {role: make_host(host) for role, host in REMOTE.items()}
    subprocess.run([sys.executable, "-m", "transfer_queue", "keys", str(folder / "keys")], check=True, timeout=60)
    binds = [f"{key}=tcp://{MIDDLE}:0" for key in ("queue.bind", "queue.shard_bind", "weights.bind")]
    config = configure(folder / "run", f"queue.key_file={folder}/keys/server.key", "limits.start_s=90", "limits.stall_s=60", *binds)
    run = run_pipeline(config, workers=remote_workers(keepers))
    print(json.dumps({"reason": run.summary.exit_reason, "said": run.said}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--inside":
        finish_host(int(sys.argv[2]))
    else:
        main(Path(sys.argv[1]))
