"""Rows of bytes, of text and of nested Python data: equal to what was put, types included, or refused with column and row."""

from __future__ import annotations

import datetime
import enum
import math
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from wired import column, over_the_wire, received

from transfer_queue.codec import pack, unpack

BLOB, TEXT, OBJECT = column(kind="blob"), column(kind="text"), column(kind="object")
leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=8) | st.binary(max_size=8)
keys = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=4) | st.binary(max_size=4)
nested = st.recursive(
    leaves,
    lambda one: st.lists(one, max_size=4) | st.lists(one, max_size=3).map(tuple) | st.dictionaries(keys | st.tuples(keys, keys), one, max_size=4),
    max_leaves=12,
)


def alike(got: object, sent: object) -> bool:
    """Equal, with equal types all the way down; a NaN is like itself, and -0.0 is not like 0.0."""
    if type(got) is not type(sent):
        return False
    if isinstance(sent, np.ndarray):
        return got.dtype == sent.dtype and got.shape == sent.shape and got.tobytes() == sent.tobytes()
    if isinstance(sent, float):
        return math.copysign(1, got) == math.copysign(1, sent) and (got == sent or (math.isnan(got) and math.isnan(sent)))
    if isinstance(sent, dict):
        return len(got) == len(sent) and all(alike(mine, theirs) for mine, theirs in zip(got.items(), sent.items(), strict=True))
    if isinstance(sent, list | tuple):
        return len(got) == len(sent) and all(alike(mine, theirs) for mine, theirs in zip(got, sent, strict=True))
    return got == sent


@given(st.lists(st.binary(max_size=20), max_size=9))
def test_blobs_come_back_as_bytes(blobs):
    for rows in (blobs, [bytearray(blob) for blob in blobs], [memoryview(blob) for blob in blobs]):
        got = over_the_wire(rows, BLOB)
        assert got == blobs
        assert all(type(blob) is bytes for blob in got)


def test_a_memoryview_is_stored_by_its_bytes_whatever_its_format_and_stride():
    numbers = np.arange(6, dtype="int32")
    assert over_the_wire([memoryview(numbers), memoryview(numbers)[::2]], BLOB) == [numbers.tobytes(), numbers[::2].tobytes()]


@given(st.lists(st.text(max_size=12), max_size=9))
def test_text_comes_back_as_text(texts):
    assert over_the_wire(texts, TEXT) == texts


@given(st.lists(st.text(max_size=12) | st.none(), min_size=1, max_size=9))
def test_text_that_is_absent_is_none_and_text_that_is_empty_is_not(texts):
    packed = pack("x", [text or "" for text in texts], TEXT)
    absent = np.array([text is None for text in texts])
    assert unpack(TEXT, packed.values, np.diff(packed.offsets), absent) == texts


def test_half_a_surrogate_pair_is_refused_with_its_row():
    with pytest.raises(ValueError, match=r"column 'x', row 1: .*surrogate"):
        pack("x", ["fine", "\ud800"], TEXT)


def test_bytes_that_are_no_text_are_named_by_column():
    with pytest.raises(ValueError, match="column 'x' holds bytes that are no text"):
        received(pack("x", [b"\xff"]), TEXT)


@given(st.lists(nested, max_size=4))
def test_nested_data_comes_back_equal_in_value_and_type(rows):
    assert alike(over_the_wire(rows, OBJECT), rows)


@given(hnp.arrays(st.sampled_from(["bool", "int64", "float16", "complex64"]), hnp.array_shapes(min_dims=0, min_side=0, max_side=3)))
def test_arrays_and_numbers_of_numpy_inside_objects_keep_their_bits_and_can_be_written(values):
    sent = {"pixels": values, "parts": [values, (values,)], "number": values.dtype.type(1)}
    (got,) = over_the_wire([sent], OBJECT)
    assert alike(got["parts"], sent["parts"])
    assert type(got["number"]) is values.dtype.type
    assert got["pixels"].flags.writeable
    assert got["pixels"].flags.aligned


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool])
def test_tensors_inside_objects_come_back_as_tensors(dtype):
    sent = torch.arange(6).to(dtype).view(2, 3).t()
    (got,) = over_the_wire([{"multi_modal_inputs": {"image_grid": sent}}], OBJECT)
    back = got["multi_modal_inputs"]["image_grid"]
    assert (back.dtype, back.shape) == (dtype, sent.shape)
    assert torch.equal(back.view(torch.uint8), sent.contiguous().view(torch.uint8))


class Colour(enum.IntEnum):
    RED = 1


class Point(tuple):
    pass


LOOP: list[object] = []
LOOP.append(LOOP)
DEEP: list[object] = []
for _ in range(5000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ({1, 2}, TypeError, r"builtins\.set would not come back as it is.*convert it"),
        (object(), TypeError, r"builtins\.object would not"),
        (Colour.RED, TypeError, "Colour would not"),
        (Point((1, 2)), TypeError, "Point would not"),
        (OrderedDict(a=1), TypeError, r"dict\(value\)"),
        (datetime.datetime(2026, 1, 1), TypeError, "datetime"),
        ({frozenset(): 1}, TypeError, "frozenset .*keys are None"),
        (bytearray(b"a"), TypeError, "bytearray"),
        (print, TypeError, "builtin_function"),
        (np.array(["a"]), TypeError, "text is kind 'text'"),
        (np.array([None]), TypeError, "kind 'object'"),
        (2**64, ValueError, "ints"),
        ("\ud800", ValueError, "surrogate"),
        (LOOP, ValueError, "contains itself"),
        (DEEP, ValueError, "nested too deeply"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isascii() else None,
)
def test_what_would_not_come_back_as_it_is_gets_refused_with_its_row(value, error, message):
    with pytest.raises(error, match=f"column 'x', row 1.*{message}"):
        pack("x", ["fine", {"inner": value}], OBJECT)


@given(st.binary(min_size=1, max_size=40))
def test_bytes_of_strangers_are_an_object_or_an_error_that_names_the_column(data):
    try:
        received(pack("x", [data]), OBJECT)
    except ValueError as error:
        assert "column 'x' holds bytes that are no object" in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    "data",
    [b"\x91" * 100_000 + b"\xc0", b"\xc7\x00\x09", b"\xc7\x01\x02\xc0", b"\xdd\xff\xff\xff\xff", b"\x80\x80", b""],
    ids=["deep", "unknown extension", "no header", "a list that is cut", "more than one", "nothing"],
)
def test_hostile_objects_cost_an_error_and_nothing_else(data):
    packed = pack("x", [data, b"\xc0"])
    if not data:
        assert received(packed, OBJECT) == [None, None]
        return
    with pytest.raises(ValueError, match="no object"):
        received(packed, OBJECT)


def test_the_kind_of_a_list_without_a_schema_is_seen_from_its_rows():
    assert [pack("x", rows).kind for rows in ([b"a"], ["a"], [])] == ["blob", "text", "blob"]
    with pytest.raises(TypeError, match="row 1 is bytes: pass a list of str"):
        pack("x", ["a", b"b"], TEXT)
