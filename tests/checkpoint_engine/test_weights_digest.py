"""The fingerprint of weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xxhash
from ce_helpers import bits, odd_weights, policy
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint_engine.copy_out import copy_out
from checkpoint_engine.digest import DigestMismatch, Verifier, digested, tensor_digest, weights_digest
from shared_arena import Arena


def test_a_tensor_digest_is_xxh3_128_of_its_bytes_in_c_order() -> None:
    for _, tensor in odd_weights(0):
        assert tensor_digest(tensor) == xxhash.xxh3_128_hexdigest(bits(tensor)[2])


def test_the_version_digest_does_not_depend_on_order_or_strides() -> None:
    weights = odd_weights(1)
    dense = [(name, tensor.detach().resolve_conj().clone(memory_format=torch.contiguous_format)) for name, tensor in reversed(weights)]
    assert weights_digest(weights) == weights_digest(dense)


@pytest.mark.parametrize("index", range(5))
def test_any_change_of_name_dtype_shape_or_bit_changes_the_version_digest(index: int) -> None:
    one = torch.arange(8, dtype=torch.int32)
    flipped = one.clone()
    flipped[3] ^= 1
    others = [[("b", one)], [("a", one.view(torch.float32))], [("a", one.view(2, 4))], [("a", flipped)], [("a", one), ("b", one[:0])]]
    assert weights_digest([("a", one)]) != weights_digest(others[index])


def test_published_weights_have_the_digest_anyone_can_compute() -> None:
    arena = Arena()
    manifest = digested(copy_out(arena, policy(0), odd_weights(2)), arena.array)
    assert manifest.weights.digest == weights_digest(odd_weights(2))


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 7))
def test_one_flipped_bit_anywhere_in_a_tensor_is_noticed(position: int, bit: int) -> None:
    arena = Arena()
    manifest = digested(copy_out(arena, policy(0), [("a", torch.arange(100)), ("b", torch.ones(77, dtype=torch.uint8))]), arena.array)
    covered = np.concatenate([np.arange(t.offset, t.offset + t.nbytes) for t in manifest.tensors])
    arena.array[covered[position % len(covered)]] ^= np.uint8(1 << bit)
    with pytest.raises(DigestMismatch, match="not loaded"):
        Verifier(manifest, arena.array).finish()
    arena.close()


@settings(deadline=None)
@given(st.lists(st.integers(0, 1500), max_size=12), st.booleans())
def test_hashing_in_pieces_as_bytes_arrive_finds_what_hashing_at_once_finds(steps: list[int], damaged: bool) -> None:
    arena = Arena()
    weights = [("a", torch.arange(100)), ("none", torch.empty(0, 3)), ("b", torch.ones(77, dtype=torch.uint8)), ("last", torch.empty(0))]
    manifest = digested(copy_out(arena, policy(0), weights), arena.array)
    arriving = np.zeros_like(arena.array)
    verifier = Verifier(manifest, arriving)

    def all_of_it() -> None:
        for done in sorted(min(step, manifest.total_bytes) for step in steps):
            arriving[:done] = arena.array[:done]  # what has not arrived is still zero
            verifier.arrived(done)
        arriving[:] = arena.array
        verifier.finish()

    if damaged:
        arena.array[manifest.tensors[2].offset + 50] ^= np.uint8(1)
        with pytest.raises(DigestMismatch, match="'b'"):
            all_of_it()
    else:
        all_of_it()
    arena.close()
