"""Numbers survive bit for bit: every numpy dtype and shape, strides, emptiness; and what is no column of numbers is refused by name."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from wired import column, declared, over_the_wire

from transfer_queue.codec import pack, storage
from transfer_queue.columns import Jagged

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
DTYPES = ["bool", *INTEGERS, "float16", "float32", "float64", "complex64", "complex128"]
dtypes = st.sampled_from(DTYPES)
arrays = dtypes.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5)))
shapes = hnp.array_shapes(min_dims=0, max_dims=2, min_side=1, max_side=3)


def same(got: np.ndarray, sent: np.ndarray) -> bool:
    """In dtype, shape and every bit."""
    return got.dtype == sent.dtype and got.shape == sent.shape and got.tobytes() == sent.tobytes()


@given(arrays)
def test_a_dense_column_comes_back_dense_with_its_shape_and_bits(sent):
    assert same(over_the_wire(sent, column(sent.dtype.name, shape=sent.shape[1:])), sent)


@given(arrays, st.sampled_from([slice(None, None, 2), slice(None, None, -1), slice(1, None, 3)]), st.booleans())
def test_strided_reversed_transposed_and_read_only_arrays_keep_their_bits(sent, stride, transposed):
    sent = (sent.T if transposed else sent)[stride]
    sent.flags.writeable = False
    assert same(over_the_wire(sent, column(sent.dtype.name, shape=sent.shape[1:])), sent)


@given(dtypes.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=2, max_dims=4, min_side=1, max_side=4))))
def test_a_dense_array_in_a_column_of_runs_comes_back_as_runs_that_are_dense_again_without_a_copy(sent):
    got = over_the_wire(sent, column(sent.dtype.name, "per_token", sent.shape[2:]))
    assert [run.tobytes() for run in got] == [row.tobytes() for row in sent]
    assert same(got.dense(), sent)
    assert np.shares_memory(got.dense(), got.values)


@given(dtypes, shapes, st.lists(st.integers(0, 5), max_size=8), st.randoms())
def test_runs_keep_their_bits_lengths_order_and_shape(dtype, shape, lengths, random):
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    runs = [np.frombuffer(random.randbytes(length * size), dtype).reshape(length, *shape) for length in lengths]
    sent = Jagged(np.concatenate([np.zeros((0, *shape), dtype), *runs]), np.cumsum([0, *lengths]))
    got = over_the_wire(sent, column(dtype, "per_token", shape))
    assert len(got) == len(runs)
    assert all(same(mine, theirs) for mine, theirs in zip(got, runs, strict=False))


@pytest.mark.parametrize("bits", [0x7FA00001, 0xFFC12345, 0x80000000, 0x00000001, 0x7F800000], ids=["snan", "nan", "-0", "subnormal", "inf"])
def test_odd_floats_keep_their_bits(bits):
    sent = np.array([bits], dtype="uint32").view("float32")
    assert same(over_the_wire(sent, column("float32")), sent)


def test_contiguous_arrays_are_packed_without_a_copy():
    sent = np.arange(24, dtype="float32").reshape(4, 3, 2)
    runs = Jagged(sent, np.array([0, 1, 1, 4]))
    assert all(np.shares_memory(pack("x", values).values, sent) for values in (sent, sent[1:], runs))


def test_a_value_without_an_axis_is_one_row():
    for value in (np.float32(3.0), np.array(3.0, dtype="float32")):
        assert same(over_the_wire(value, column("float32")), np.array([3.0], dtype="float32"))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3)])
def test_rows_without_elements_are_still_counted(shape):
    sent = np.zeros(shape, dtype="int16")
    assert over_the_wire(sent, column("int16", shape=shape[1:])).shape == shape


def test_runs_of_nothing_and_no_runs_at_all_come_back_as_that():
    of = column("int32", "per_token", (3,))
    assert over_the_wire(np.zeros((2, 0, 3), dtype="int32"), of).dense().shape == (2, 0, 3)
    assert over_the_wire(Jagged.of([[], []], "int32"), of).values.shape == (0, 3)
    assert len(over_the_wire(Jagged.of([], "int32"), of)) == 0


def test_runs_whose_values_have_no_elements_are_refused_for_their_lengths_could_not_travel():
    for sent in (np.zeros((2, 3, 0)), Jagged(np.zeros((3, 0)), np.array([0, 1, 3]))):
        with pytest.raises(ValueError, match=r"column 'x'.*no length to travel"):
            pack("x", sent)


@given(dtypes, st.integers(0, 5))
def test_numbers_of_the_other_byte_order_keep_their_value(dtype, rows):
    sent = np.arange(rows).astype(dtype)
    assert same(over_the_wire(sent.astype(sent.dtype.newbyteorder(">")), column(dtype)), sent)


def test_what_is_masked_is_never_written_as_a_number():
    values = np.ma.masked_array([1.0, 2.0], mask=[False, True])
    with pytest.raises(ValueError, match=r"column 'rewards' is masked in rows \[1\].*filled"):
        pack("rewards", values)
    with pytest.raises(ValueError, match=r"masked in rows \[0\]"):
        pack("rewards", np.ma.masked_array([[1, 2]], mask=[[False, True]]))
    assert over_the_wire(np.ma.masked_array([1.0]), column("float64")).tolist() == [1.0]


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_subclasses_of_ndarray_travel_as_the_array_they_are(tmp_path):
    mapped = np.memmap(tmp_path / "values", dtype="int32", mode="w+", shape=(3,))
    mapped[:] = [1, 2, 3]
    assert type(over_the_wire(mapped, column("int32"))) is np.ndarray
    assert over_the_wire(np.asmatrix([[1, 2]]), column("int64", shape=(2,))).tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        (np.array(["a"]), "text is kind 'text'"),
        (np.array([b"a"]), "bytes are kind 'blob'"),
        (np.array([object()]), "Python objects are kind 'object'"),
        (np.zeros(2, dtype="M8[s]"), r"values\.view\('int64'\)"),
        (np.zeros(2, dtype="m8[ms]"), r"values\.view\('int64'\)"),
        (np.zeros(2, dtype=[("a", "i4"), ("b", "f8")]), "one column a field"),
        (np.zeros(2, dtype=np.longdouble), "convert to float64"),
        (np.zeros(2, dtype=np.clongdouble), "convert to complex128"),
        ("text", r"builtins\.str: pass an ndarray"),
        ([1.0, 2.0], "row 0 is float: rows of a blob must be bytes; pass an ndarray for scalars"),
        ((1.0, 2.0), r"builtins\.tuple: pass an ndarray"),
        (None, "NoneType: pass an ndarray"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_is_no_column_of_numbers_is_refused_by_name_with_advice(values, advice):
    with pytest.raises(TypeError, match=f"column 'rewards'.*{advice}"):
        pack("rewards", values)


@pytest.mark.parametrize("dtype", ["float31", "object", "str", "M8[s]", "V8", "longdouble", "qint8", ">i4", "i4,f8", "06", "(2,)i4", ""])
def test_dtypes_that_do_not_travel_are_refused(dtype):
    with pytest.raises(ValueError, match="dtype="):
        storage(dtype)


def test_an_array_without_a_schema_is_scalar_in_one_axis_and_runs_in_more():
    assert [declared(pack("x", np.zeros(shape))).kind for shape in ((), (2,), (2, 3), (2, 3, 4))] == ["scalar", "scalar", "per_token", "per_token"]
    assert pack("x", np.zeros((2, 3, 4))).shape == (4,)


def test_torch_is_not_imported_for_numpy_columns_text_and_objects():
    code = (
        "import numpy, sys, transfer_queue.client, transfer_queue.codec as c; from transfer_queue.messages import Column;"
        "c.pack('x', numpy.ones(3)); c.pack('x', ['a']); c.pack('x', [{'a': numpy.ones(3)}], Column('x', 'uint8', 'object', 'p'));"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
