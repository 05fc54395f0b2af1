"""What vLLM's processes read weights from, without vLLM: each load sees its own version only, and a model that computes with that memory is found."""

from __future__ import annotations

import torch

from asyncflow.contracts.weights import WeightsId
from asyncflow.engines.rollout.vllm.staging import overlapping, read_staged
from checkpoint_engine.copy_out import copy_out
from shared_arena import Arena


def weights(version: int) -> WeightsId:
    return WeightsId("policy", 0, version)


def network() -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64))
    model.requires_grad_(False)
    return model


def test_a_loader_that_changes_what_it_reads_spoils_neither_the_slot_nor_a_later_version_in_it() -> None:
    slot = Arena(user="weights")
    for version in range(3):
        manifest = copy_out(slot, weights(version), [("a", torch.full((5000,), float(version))), ("b", torch.ones(3))])
        source = Arena.attach(slot.descriptor(), private=True)
        read = dict(read_staged(manifest, source))
        assert read["a"].eq(float(version)).all()
        read["a"].neg_()
        assert Arena.attach(slot.descriptor()).array[: 4 * 5000].view("float32").min() == version
        source.close()


def test_parameters_and_buffers_that_are_views_of_what_was_read_are_named_and_copies_are_not() -> None:
    model, slot = network(), Arena(user="weights")
    manifest = copy_out(slot, weights(0), model.state_dict().items())
    source = Arena.attach(slot.descriptor(), private=True)
    read = dict(read_staged(manifest, source))
    model.load_state_dict(read)
    assert overlapping(model, source) == []
    model[0].bias.data = read["0.bias"]
    model[1].running_var = read["1.running_var"][3:]
    assert overlapping(model, source) == ["0.bias", "1.running_var"]
