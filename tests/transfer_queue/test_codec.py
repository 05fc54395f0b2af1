"""Bits survive: every dtype, strides, emptiness, bfloat16 and float8; and what is no column is refused by name."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from transfer_queue.codec import BITS, pack, storage, to_torch, unpack
from transfer_queue.columns import Jagged

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
DTYPES = ["bool", *INTEGERS, "float16", "float32", "float64", "complex64", "complex128"]
arrays = st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, st.integers(0, 40)))
TORCH_BITS = [name for name in BITS if hasattr(torch, name)]


def over_the_wire(packed, dtype: str):
    """What a reader gets of what a writer packed: bytes, and nothing else, in between."""
    return unpack(packed.kind, dtype, np.frombuffer(packed.values.tobytes(), dtype=storage(dtype)), np.diff(packed.offsets))


@given(arrays)
def test_a_scalar_column_keeps_its_bits(column):
    packed = pack("x", column)
    assert packed.kind == "scalar"
    assert over_the_wire(packed, packed.dtype).tobytes() == column.tobytes()


@given(arrays, st.sampled_from([slice(None, None, 2), slice(None, None, -1), slice(1, None, 3)]))
def test_a_strided_column_keeps_its_bits(column, stride):
    packed = pack("x", column[stride])
    assert packed.values.flags.c_contiguous
    assert over_the_wire(packed, packed.dtype).tobytes() == column[stride].tobytes()


@given(st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=8))))
def test_a_dense_array_comes_back_as_runs_also_when_transposed(column):
    for dense in (column, column.T):
        got = over_the_wire(pack("x", dense), dense.dtype.name)
        assert [run.tobytes() for run in got] == [row.tobytes() for row in dense]


@given(st.lists(st.lists(st.floats(width=32), max_size=9), max_size=9))
def test_runs_keep_their_bits_and_lengths(runs):
    jagged = Jagged.of(runs, "float32")
    got = over_the_wire(pack("x", jagged), "float32")
    assert got.values.tobytes() == jagged.values.tobytes()
    assert got.lengths.tolist() == [len(run) for run in runs]


@given(st.lists(st.binary(max_size=20), max_size=9))
def test_blobs_come_back_as_bytes(blobs):
    assert over_the_wire(pack("x", blobs), "uint8") == blobs


@given(hnp.arrays("uint16", st.integers(0, 20)), st.sampled_from(TORCH_BITS))
def test_bfloat16_and_float8_are_viewed_and_never_converted(bits, name):
    plain = bits if BITS[name] == "uint16" else bits.astype("uint8")
    tensor = torch.from_numpy(plain.copy()).view(getattr(torch, name))  # any bits: NaN payloads, infinities, denormals
    packed = pack("x", tensor)
    back = to_torch(over_the_wire(packed, name), name)
    assert packed.dtype == name
    assert back.dtype == tensor.dtype
    integer = getattr(torch, BITS[name])
    assert back.view(integer).tolist() == tensor.view(integer).tolist()


@pytest.mark.parametrize("name", [dtype for dtype in DTYPES if hasattr(torch, dtype)])
def test_torch_columns_equal_numpy_columns(name):
    values = np.arange(12).reshape(3, 4).astype(name)
    tensor = torch.from_numpy(values).t()  # strided
    packed = pack("x", tensor)
    assert packed.values.tobytes() == np.ascontiguousarray(values.T).tobytes()
    assert torch.equal(to_torch(packed.values, name), tensor.contiguous().view(-1))


@given(st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=8), st.randoms())
def test_rows_can_be_taken_in_another_order(runs, random):
    order = random.sample(range(len(runs)), len(runs))
    taken = pack("x", Jagged.of(runs, "int32")).take(np.array(order))
    assert [run.tolist() for run in unpack("per_token", "int32", taken.values, np.diff(taken.offsets))] == [runs[row] for row in order]


def test_a_zero_dimensional_value_is_one_row():
    assert len(pack("x", np.float32(3.0))) == len(pack("x", torch.tensor(3.0))) == len(pack("x", np.array(3))) == 1


def test_an_empty_batch_is_zero_rows():
    assert [len(pack("x", column)) for column in (np.zeros(0), np.zeros((0, 7)), Jagged.of([], "int32"), [], torch.zeros(0))] == [0] * 5


def test_big_endian_numbers_keep_their_value():
    assert over_the_wire(pack("x", np.array([1, 258], dtype=">i4")), "int32").tolist() == [1, 258]


@pytest.mark.parametrize("column", [np.array(["a"]), np.array([object()]), ["text"], "text", np.zeros((2, 2, 2)), np.zeros(2, dtype="M8[s]")])
def test_what_is_no_column_is_refused_by_name(column):
    with pytest.raises((TypeError, ValueError), match="column 'rewards'"):
        pack("rewards", column)


def test_unknown_dtypes_are_refused():
    for dtype in ("float31", "object", "str", "M8[s]"):
        with pytest.raises(ValueError, match="dtype="):
            storage(dtype)


def test_converted_values_are_not_taken_for_bits():
    with pytest.raises(TypeError, match="bfloat16 is stored as uint16"):
        to_torch(np.zeros(2, dtype="float32"), "bfloat16")


def test_torch_is_not_imported_for_numpy_columns():
    code = "import numpy, sys, transfer_queue.client, transfer_queue.codec as c; c.pack('x', numpy.ones(3)); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
