"""TransferQueue's configuration: what is used, what has no meaning, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from transfer_queue.compat import conf
from transfer_queue.compat.conf import settings_of

VERL: dict[str, Any] = {  # as verl 0.9.1 passes it
    "enable": True,
    "metrics": {"enabled": False, "port": 0},
    "backend": {
        "storage_backend": "SimpleStorage",
        "SimpleStorage": {"total_storage_size": 100000, "num_data_storage_units": 8},
        "MooncakeStore": {"auto_init": False, "metadata_server": "localhost:50123", "global_segment_size": 4294967296},
    },
}
THEIRS: dict[str, Any] = {  # the rest of TransferQueue's own defaults
    "controller": {"sampler": "SequentialSampler", "polling_mode": False, "zmq_info": None},
    "backend": {
        "SimpleStorage": {
            "required_node_resource": None,
            "zmq_info": None,
            "ssd_offload": {"enabled": False, "path": None, "threshold_bytes": 1048576, "glibc_mmap_threshold_bytes": 1048576},
        },
        "Yuanrong": {"port": 31501},
        "RayStore": None,
    },
}


def test_what_verl_passes_and_the_defaults_of_theirs_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conf.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(conf, "_memory", lambda: 1000)
    assert settings_of(VERL) == conf.Settings(shards=1, capacity_bytes=500, metrics_port=None)
    assert settings_of(THEIRS) == settings_of(None) == settings_of({})


def test_a_config_of_omegaconf_is_read_with_what_it_refers_to() -> None:
    omegaconf = pytest.importorskip("omegaconf")
    given = omegaconf.OmegaConf.create({"a": 2, "queue": {**VERL, "metrics": {"enabled": True, "port": "${a}"}}})
    assert settings_of(given.queue).metrics_port == 2


def test_shards_are_the_storage_units_as_far_as_this_machine_has_processors_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conf, "_memory", lambda: 1 << 40)
    for cpus, shards in ((1, 1), (16, 2), (64, 8), (256, 8)):
        monkeypatch.setattr(conf.os, "cpu_count", lambda cpus=cpus: cpus)
        found = settings_of(VERL)
        assert (found.shards, found.capacity_bytes * shards) == (shards, 1 << 39)


def test_room_and_metrics_are_as_they_are_written() -> None:
    given = settings_of({"asyncflow": {"capacity_bytes": 4096}, "metrics": {"enabled": True, "port": 9400}})
    assert (given.capacity_bytes, given.metrics_port) == (4096, 9400)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"backend": {"storage_backend": "MooncakeStore"}}, ("backend.storage_backend='MooncakeStore'", "SimpleStorage")),
        ({"backend": {"SimpleStorage": {"ssd_offload": {"enabled": True}}}}, ("ssd_offload.enabled=True", "memory")),
        ({"backend": {"SimpleStorage": {"required_node_resource": "big"}}}, ("required_node_resource='big'", "None")),
        ({"controller": {"sampler": "GRPOGroupNSampler"}}, ("controller.sampler='GRPOGroupNSampler'", "SequentialSampler")),
        ({"backend": {"SimpleStorage": {"num_data_storage_unit": 8}}}, ("num_data_storage_unit=8", "did you mean", "num_data_storage_units")),
        ({"backend": {"SimpleStorage": {"num_data_storage_units": 0}}}, ("num_data_storage_units=0", "[1, 256]")),
        ({"metrics": {"port": True}}, ("metrics.port=True", "whole number")),
        ({"asyncflow": {"capacity_bytes": 1.5}}, ("capacity_bytes=1.5", "whole number")),
        (3, ("conf is a int", "mapping")),
    ],
)
def test_what_cannot_be_kept_to_is_refused_by_name(given: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="nothing was started") as caught:
        settings_of(given)
    assert [word for word in words if word not in str(caught.value)] == []


def test_memory_is_that_of_the_container_where_it_has_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(conf, "CGROUP", limit)
    machine = conf._memory()
    limit.write_text("4096\n")
    assert conf._memory() == 4096
    limit.write_text("max\n")
    assert conf._memory() == machine
