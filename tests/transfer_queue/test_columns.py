"""Runs side by side: dense again when they have one length, padded when not, and never anything that the dtype cannot hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from transfer_queue.columns import Jagged

shapes = hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3)


@given(hnp.arrays("int32", hnp.array_shapes(min_dims=2, max_dims=4, min_side=0, max_side=4)))
def test_runs_of_one_length_are_dense_without_a_copy(values):
    flat = values.reshape(values.shape[0] * values.shape[1], *values.shape[2:])
    runs = Jagged(flat, np.arange(values.shape[0] + 1) * values.shape[1])
    dense = runs.dense()
    assert dense.shape == (values.shape if len(values) else (0, 0, *values.shape[2:]))
    assert (dense.tobytes(), dense.base is not None) == (values.tobytes(), True)


def test_runs_of_many_lengths_are_not_dense_and_the_lengths_are_named():
    with pytest.raises(ValueError, match=r"runs have lengths \[0, 1, 3\].*padded"):
        Jagged.of([[1], [], [1, 2, 3]], "int32").dense()


@given(st.lists(st.integers(0, 4), max_size=6), shapes, st.sampled_from(["int16", "float32", "bool"]))
def test_padding_stands_right_of_every_run_and_nowhere_else(lengths, shape, dtype):
    values = np.ones((sum(lengths), *shape), dtype=dtype)
    padded = Jagged(values, np.cumsum([0, *lengths])).padded(0)
    assert padded.dtype == dtype
    assert padded.shape == (len(lengths), max(lengths, default=0), *shape)
    for row, length in zip(padded, lengths, strict=True):
        assert row[:length].all()
        assert not row[length:].any()


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("float32", np.nan), ("float32", 0.1), ("float16", -1), ("int32", np.int64(-100)), ("uint8", 255), ("bool", True), ("complex64", 1j)],
)
def test_every_value_that_the_dtype_holds_can_pad(dtype, value):
    found = Jagged.of([[1], []], dtype).padded(value)[1, 0]
    assert found == np.dtype(dtype).type(value) or found != found


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("int32", np.nan), ("uint8", -1), ("uint8", 256), ("float32", 1j), ("bool", 2), ("float16", 1e6), ("int8", 0.5), ("int8", "1")],
)
def test_a_value_that_the_dtype_cannot_hold_is_refused_and_never_wrapped(dtype, value):
    with pytest.raises(ValueError, match="can hold"):
        Jagged.of([[1], []], dtype).padded(value)


def test_runs_are_found_by_their_row_also_from_the_end():
    runs = Jagged.of([[1], [2, 3], []], "int32")
    assert [runs[row].tolist() for row in (0, 1, 2, -1, -2)] == [[1], [2, 3], [], [], [2, 3]]
    assert [run.tolist() for run in runs] == [[1], [2, 3], []]
    with pytest.raises(IndexError):
        runs[3]


def test_runs_of_values_keep_the_shape_of_those_that_are_not_empty():
    runs = Jagged.of([[], np.ones((2, 3)), np.zeros((1, 3))], "float32")
    assert (runs.values.shape, runs.lengths.tolist()) == ((3, 3), [0, 2, 1])


@pytest.mark.parametrize(
    ("values", "offsets"),
    [(np.zeros(2), [0, 1]), (np.zeros(2), [1, 2]), (np.zeros(2), [0, 2, 1, 2]), (np.zeros(()), [0]), (np.zeros(2), []), (np.zeros(2), [0.0, 2.0])],
)
def test_offsets_that_name_other_values_are_refused(values, offsets):
    with pytest.raises(ValueError, match="offsets"):
        Jagged(values, np.array(offsets))
