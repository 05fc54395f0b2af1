"""What a run needs of a cluster's nodes, and how it is said that they do not have it. Numbers only: no Ray here."""

from __future__ import annotations

import pytest

from asyncflow.config import ClusterSettings, ResourceSettings, RunConfig, WeightsSettings
from asyncflow.config.queue import QueueSettings
from asyncflow.launch.ray.placement import Bundle, Node, bundles, never, not_now, unreachable


def config(resources: dict[str, ResourceSettings], kind: str = "cuda", **more: object) -> RunConfig:
    return RunConfig(launch="ray", cluster=ClusterSettings(kind=kind, devices=64), resources=resources, **more)


def node(name: str, cpus: float, devices: float = 0, free_devices: float | None = None, host: str = "10.0.0.1") -> Node:
    total = {"CPU": cpus, "GPU": devices}
    return Node(name, host, total, total | {"GPU": devices if free_devices is None else free_devices})


def test_a_bundle_is_a_worker_with_those_beside_it() -> None:
    found = bundles(
        config(
            {
                "rollout": ResourceSettings(workers=2, devices=8, threads=3),
                "actor_forward": ResourceSettings(devices=0.5),
                "ref_forward": ResourceSettings(devices=0.5),
                "scorer": ResourceSettings(workers=3, beside="rollout", threads=2),
                "trainer": ResourceSettings(devices=2),
            }
        )
    )
    assert found == [
        Bundle(("rollout-0", "scorer-0", "scorer-2"), {"CPU": 7.0, "GPU": 4.0}),
        Bundle(("rollout-1", "scorer-1"), {"CPU": 5.0, "GPU": 4.0}),
        Bundle(("actor_forward-0",), {"CPU": 1.0, "GPU": 0.5}),
        Bundle(("ref_forward-0",), {"CPU": 1.0, "GPU": 0.5}),
        Bundle(("trainer-0",), {"CPU": 1.0, "GPU": 2.0}),
    ]


def test_devices_are_called_as_ray_calls_them_and_a_publisher_goes_where_it_listens() -> None:
    (npu,) = bundles(config({"trainer": ResourceSettings(devices=1)}, kind="npu"))
    assert npu.wants == {"CPU": 1.0, "NPU": 1.0}
    weights = WeightsSettings(bind="tcp://10.0.0.7:0")
    (publisher,) = bundles(config({"publisher": ResourceSettings()}, weights=weights))
    assert publisher.wants == {"node:10.0.0.7": 0.001, "CPU": 1.0}


def test_what_no_node_could_hold_is_named_with_what_it_wants_and_what_the_nodes_have() -> None:
    needed = [Bundle(("source-0",), {"CPU": 1.0}), Bundle(("rollout-0", "scorer-0"), {"CPU": 2.0, "GPU": 4.0})]
    refusal = never(needed, [node("a", 8, 2), node("b", 8, 3, free_devices=1)])
    assert refusal is not None
    assert refusal.startswith("rollout-0 with scorer-0 cannot be placed: it wants 2 CPU and 4 GPU on one node, and no node has so much")
    assert "node b has 8 of 8 CPU free, 1 of 3 GPU free" in refusal
    assert "Fix: " in refusal
    assert never(needed, [node("a", 8, 2), node("b", 8, 4, free_devices=0)]) is None, "taken now is not taken for ever"


def test_totals_that_do_not_fit_are_named_by_the_first_worker_beyond_them() -> None:
    needed = [Bundle((f"rollout-{index}",), {"CPU": 1.0, "GPU": 2.0}) for index in range(3)]
    refusal = never(needed, [node("a", 8, 2), node("b", 8, 2)])
    assert refusal is not None
    assert refusal.startswith("rollout-2 cannot be placed: it wants 1 CPU and 2 GPU, all workers together want 6 GPU, and all nodes together have 4")
    thirds = [Bundle((f"rollout-{index}",), {"CPU": 1.0, "GPU": 1 / 3}) for index in range(3)]
    assert never(thirds, [node("a", 3, 1)]) is None


def test_who_found_no_place_in_time_is_named_and_others_are_not() -> None:
    needed = [Bundle(("source-0",), {"CPU": 1.0}), Bundle(("rollout-0",), {"CPU": 1.0, "GPU": 2.0}), Bundle(("trainer-0",), {"CPU": 1.0, "GPU": 1.0})]
    text = not_now(needed, [node("a", 8, 2, free_devices=1), node("b", 8, 1, free_devices=0)], 5.0)
    assert text.startswith("no place within limits.place_s = 5 s for rollout-0 (wants 1 CPU and 2 GPU); node a has 8 of 8 CPU free, 1 of 2 GPU free")
    assert "trainer-0" not in text


@pytest.mark.parametrize("key", ["queue.bind", "queue.shard_bind", "weights.bind"])
def test_loopback_serves_one_machine_only(key: str) -> None:
    far = "tcp://10.0.0.1:0"
    binds = {name: "tcp://127.0.0.1:0" if name == key else far for name in ("queue.bind", "queue.shard_bind", "weights.bind")}
    queue = QueueSettings(bind=binds["queue.bind"], shard_bind=binds["queue.shard_bind"])
    found = config({}, queue=queue, weights=WeightsSettings(bind=binds["weights.bind"]))
    two = [node("a", 1), node("b", 1, host="10.0.0.2")]
    refusal = unreachable(found, two)
    assert refusal is not None
    assert refusal.startswith(f"{key} = 'tcp://127.0.0.1:0': the cluster's nodes are 10.0.0.1, 10.0.0.2")
    assert unreachable(found, [node("a", 1), node("b", 1)]) is None
    assert unreachable(found, [node("a", 1, host="127.0.0.1"), node("b", 1, host="127.0.0.2")]) is None
