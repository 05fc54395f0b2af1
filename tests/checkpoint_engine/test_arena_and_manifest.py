"""Layout of weights in shared memory."""

from __future__ import annotations

import msgspec
import pytest
import torch
from ce_helpers import bits, odd_weights, policy

from checkpoint_engine.copy_out import copy_out
from checkpoint_engine.manifest import ManifestError, check_manifest, view_tensor
from shared_arena import Arena


def test_every_kind_of_tensor_comes_back_bit_for_bit() -> None:
    arena = Arena()
    manifest = copy_out(arena, policy(0), iter(odd_weights(3)))
    check_manifest(manifest)
    buffer = arena.tensor()
    for (name, tensor), meta in zip(odd_weights(3), manifest.tensors, strict=True):
        assert name == meta.name
        assert bits(view_tensor(buffer, meta)) == bits(tensor)


def test_a_name_yielded_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="yielded twice"):
        copy_out(Arena(), policy(0), [("a", torch.ones(1)), ("a", torch.ones(1))])


BROKEN = [{"offset": 64}, {"offset": 7}, {"nbytes": 9}, {"dtype": "float7"}, {"shape": (-1, -2)}, {"offset": 1 << 20}, {"name": "a"}]


@pytest.mark.parametrize("change", BROKEN)
def test_a_manifest_that_cannot_be_laid_out_is_refused(change: dict[str, object]) -> None:
    manifest = copy_out(Arena(), policy(0), [("a", torch.ones(40)), ("b", torch.ones(2))])
    broken = (manifest.tensors[0], msgspec.structs.replace(manifest.tensors[1], **change))
    with pytest.raises(ManifestError, match=r"refused|cannot be read"):
        check_manifest(msgspec.structs.replace(manifest, tensors=broken))
