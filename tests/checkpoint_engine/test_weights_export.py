"""Versions on disk: ordinary Hugging Face files, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ce_helpers import bits, odd_weights, policy, running_publisher
from safetensors.torch import load_file

from checkpoint_engine.cache import HostCache
from checkpoint_engine.digest import weights_digest
from checkpoint_engine.export import export_weights, read_weights_id
from checkpoint_engine.publisher_client import PublisherClient


def test_an_export_is_read_by_safetensors_bit_for_bit_and_names_its_version(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text("{}")
    (base / "model.safetensors").write_bytes(b"old weights")
    with running_publisher() as publisher:
        with pytest.raises(LookupError, match="nothing was published"):
            publisher.export(tmp_path / "early")
        client = PublisherClient(publisher.endpoint)
        client.publish(policy(3), odd_weights(1))
        weights = client.wait_published(policy(3), 5)
        assert publisher.export(tmp_path / "deep" / "v3", base) == weights
        with pytest.raises(FileExistsError, match="never replaces"):
            publisher.export(tmp_path / "deep" / "v3")
        client.close()
    read = load_file(tmp_path / "deep" / "v3" / "model.safetensors")
    assert {name: bits(tensor) for name, tensor in read.items()} == {name: bits(tensor) for name, tensor in odd_weights(1)}
    assert read_weights_id(tmp_path / "deep" / "v3") == weights
    assert weights.digest == weights_digest(read.items())
    assert (tmp_path / "deep" / "v3" / "config.json").exists()


def test_an_export_that_a_closing_publisher_overtakes_is_whole_even_so(tmp_path: Path) -> None:
    cache = HostCache()
    cache.put(policy(2), odd_weights(4))
    lease = cache.lease("export", 60.0)
    assert lease is not None
    cache.close()
    export_weights(lease, tmp_path / "v2")
    read = load_file(tmp_path / "v2" / "model.safetensors")
    assert {name: bits(tensor) for name, tensor in read.items()} == {name: bits(tensor) for name, tensor in odd_weights(4)}
    cache.release(lease)
    assert lease.arena.nbytes == 0, "the last reader's end closes what it read"


def test_an_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with running_publisher() as publisher:
        client = PublisherClient(publisher.endpoint)
        client.publish(policy(0), [("a", torch.ones(2, dtype=torch.complex128))])
        client.wait_published(policy(0), 5)
        with pytest.raises(ValueError, match="unknown to safetensors"):
            publisher.export(tmp_path / "v0")
        client.close()
    assert list(tmp_path.iterdir()) == []
