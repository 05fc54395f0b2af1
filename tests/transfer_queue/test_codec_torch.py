"""Every dtype that torch has, bit for bit or refused by name; every way a tensor can look; and tensors over memory that nobody may write."""

from __future__ import annotations

import signal
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wired import column, over_the_wire, received

from transfer_queue.codec import BITS, from_torch, pack, storage, to_nested, to_torch
from transfer_queue.columns import Jagged
from transfer_queue.dtypes import REFUSED

ALL = sorted({str(found).removeprefix("torch.") for found in vars(torch).values() if isinstance(found, torch.dtype)})
TRAVELLING = [name for name in ALL if name not in REFUSED]
QUANTISED = [name for name in ALL if name in REFUSED]
QUIET = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental", "ignore:.*quantized tensor creation:UserWarning")


def of_bits(data: bytes, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor of any dtype with exactly these bits."""
    if not data:
        return torch.empty(shape, dtype=getattr(torch, name))
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(getattr(torch, name)).view(shape)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def patterns(name: str, shape: tuple[int, ...]) -> st.SearchStrategy[torch.Tensor]:
    """Tensors with any bits: NaN with payloads, -0.0, subnormals; a bool has two patterns."""
    size = int(np.prod(shape)) * getattr(torch, name).itemsize
    most = 1 if name == "bool" else 255
    return st.lists(st.integers(0, most), min_size=size, max_size=size).map(lambda data: of_bits(bytes(data), name, shape))


@pytest.mark.parametrize("name", TRAVELLING)
@given(st.data())
@settings(max_examples=12)
@QUIET
def test_every_dtype_of_torch_keeps_every_bit(name, data):
    shape = tuple(data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    sent = data.draw(patterns(name, shape))
    back = to_torch(over_the_wire(sent, column(name, shape=shape[1:])), name)
    assert (back.dtype, back.shape, bits(back)) == (sent.dtype, sent.shape, bits(sent))


@pytest.mark.parametrize("name", TRAVELLING)
@QUIET
def test_tensors_that_are_strided_transposed_or_expanded_keep_their_bits_in_every_dtype(name):
    size = getattr(torch, name).itemsize
    table = np.random.default_rng(0).integers(0, 2 if name == "bool" else 256, (4, 6, size), dtype="uint8")
    sent = of_bits(table.tobytes(), name, (4, 6))
    for view, looks in ((sent.t(), table.transpose(1, 0, 2)), (sent[::2, 1::2], table[::2, 1::2]), (sent[:1].expand(3, 6), table[[0, 0, 0]])):
        got = over_the_wire(view, column(name, shape=tuple(view.shape[1:])))
        assert (got.shape, got.tobytes()) == (tuple(view.shape), looks.tobytes())


def test_every_dtype_of_torch_is_either_carried_or_refused_on_purpose():
    assert len(TRAVELLING) > 35
    assert all(storage(name).itemsize == getattr(torch, name).itemsize for name in TRAVELLING)
    assert QUANTISED == ["qint32", "qint8", "quint2x4", "quint4x2", "quint8"]


@pytest.mark.parametrize("name", QUANTISED)
@QUIET
def test_quantised_tensors_are_refused_with_what_to_do_instead(name):
    dtype = getattr(torch, name)
    sent = torch.empty(4, dtype=dtype) if "x" in name else torch.quantize_per_tensor(torch.ones(2), 0.5, 0, dtype)
    with pytest.raises(TypeError, match=rf"column 'x' is a tensor of torch\.{name}: its scale.*int_repr"):
        pack("x", sent)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float32"])
def test_all_bit_patterns_of_a_narrow_float_survive_also_strided_and_in_runs(name):
    width = getattr(torch, name).itemsize
    count = 1 << (8 * width) if width < 4 else 4096
    sent = of_bits(np.arange(count, dtype={1: "uint8", 2: "uint16", 4: "uint32"}[width]).tobytes(), name, (16, count // 16)).t()
    for of in (column(name, shape=(16,)), column(name, "per_token")):
        got = over_the_wire(sent, of)
        back = to_torch(got.dense() if isinstance(got, Jagged) else got, name)
        assert bits(back) == bits(sent)


VIEWS = {
    "0-d": lambda t: t[0, 0],
    "empty": lambda t: t[:0],
    "no width": lambda t: t[:, :0],
    "strided": lambda t: t[::2, 1::2],
    "transposed": lambda t: t.t(),
    "expanded": lambda t: t[:1].expand(3, 6),
    "flipped": lambda t: t.flip(0),
    "with a gradient": lambda t: t.clone().requires_grad_(),
    "not a leaf": lambda t: t.clone().requires_grad_() * 2,
    "a parameter": lambda t: torch.nn.Parameter(t.clone()),
    "a buffer": lambda t: torch.nn.Buffer(t.clone()),
    "with an offset": lambda t: t[2:, 3:],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_tensor_is_stored_as_it_looks_whatever_lies_under_it(view):
    sent = view(torch.arange(24, dtype=torch.float32).view(4, 6))
    got = to_torch(over_the_wire(sent, column("float32", shape=tuple(sent.shape[1:]))))
    assert torch.equal(got, sent.detach().reshape(got.shape))
    assert not got.requires_grad


def test_made_in_inference_mode_is_stored_too():
    with torch.inference_mode():
        sent = torch.ones(3)
    assert over_the_wire(sent, column("float32")).tolist() == [1, 1, 1]


@pytest.mark.parametrize("name", ["complex32", "complex64", "complex128"])
@QUIET
def test_conjugates_and_negatives_are_stored_as_the_numbers_they_show(name):
    parts = torch.arange(6.0, dtype={"complex32": torch.float16, "complex64": torch.float32, "complex128": torch.float64}[name]).view(3, 2)
    sent = torch.view_as_complex(parts)
    assert sent.conj().is_conj()
    got = to_torch(over_the_wire(sent.conj(), column(name)), name)
    assert torch.view_as_real(got).tolist() == [[real, -imaginary] for real, imaginary in parts.tolist()]
    negative = sent.conj().imag
    assert negative.is_neg()
    assert over_the_wire(negative, column(str(parts.dtype).removeprefix("torch."))).tolist() == [-1, -3, -5]


class Named(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda: torch.eye(2).to_sparse(), "layout torch.sparse_coo.*to_dense"),
        (lambda: torch.eye(2).to_sparse_csr(), "layout torch.sparse_csr.*to_dense"),
        (lambda: torch.empty(2, device="meta"), "device 'meta'"),
        (lambda: torch.ones(2).as_subclass(Named), r"Named: .*as_subclass\(torch\.Tensor\)"),
        (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "layout=torch.jagged"),
        (lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged).transpose(1, 2), "rows, ragged"),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse", "ignore:The PyTorch API of nested tensors")
def test_tensors_that_are_more_than_their_bits_are_refused_by_name(make, advice):
    with pytest.raises(TypeError, match=f"column 'x'.*{advice}"):
        pack("x", make())


NESTED = ["bfloat16", "float32", "int64", "float8_e5m2"]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.sampled_from([(), (3,), (2, 2)]), st.sampled_from(NESTED), st.data())
@settings(max_examples=20)
def test_nested_tensors_come_back_as_runs_and_as_nested_tensors(lengths, shape, name, data):
    values = data.draw(patterns(name, (sum(lengths), *shape)))
    sent = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, *np.cumsum(lengths)]))
    got = over_the_wire(sent, column(name, "per_token", shape))
    found, offsets = to_torch(got)
    assert (found.dtype, bits(found), offsets.tolist()) == (values.dtype, bits(values), [0, *np.cumsum(lengths).tolist()])
    back = to_nested(got)
    assert back.layout is torch.jagged
    assert [bits(run) for run in back.unbind()] == [bits(run) for run in values.split(lengths)]


def test_a_narrowed_nested_tensor_is_stored_as_it_looks():
    whole = torch.nested.nested_tensor([torch.arange(4.0), torch.arange(3.0)], layout=torch.jagged)
    narrowed = torch.nested.narrow(torch.arange(12.0).view(2, 6), 1, torch.tensor([1, 2]), torch.tensor([2, 3]), layout=torch.jagged)
    assert [run.tolist() for run in over_the_wire(whole, column("float32", "per_token"))] == [[0, 1, 2, 3], [0, 1, 2]]
    assert [run.tolist() for run in over_the_wire(narrowed, column("float32", "per_token"))] == [[1, 2], [8, 9, 10]]


def test_runs_of_a_dtype_that_numpy_lacks_are_made_from_tensors_and_keep_its_name():
    runs = from_torch(torch.arange(6, dtype=torch.bfloat16).view(3, 2), torch.tensor([0, 1, 3]))
    assert (runs.dtype, runs.values.dtype) == ("bfloat16", np.uint16)
    values, offsets = to_torch(over_the_wire(runs, column("bfloat16", "per_token", (2,))))
    assert (values.dtype, values.tolist(), offsets.tolist()) == (torch.bfloat16, [[0, 1], [2, 3], [4, 5]], [0, 1, 3])
    with pytest.raises(TypeError, match="is called bfloat16, whose bits are uint16, but holds float32"):
        pack("x", Jagged(np.zeros(1, dtype="float32"), np.array([0, 1]), "bfloat16"))


def test_a_contiguous_tensor_is_packed_without_a_copy():
    sent = torch.zeros(4, 3, dtype=torch.bfloat16)
    pack("x", sent).values[:] = 0x3F80
    assert sent.tolist() == [[1.0] * 3] * 4


@given(st.sampled_from(["float32", "bfloat16", "bool", "complex64"]), st.sampled_from([(5,), (0,), (), (2, 3)]))
def test_a_tensor_over_read_only_memory_shares_it_and_torch_says_nothing(name, shape):
    values = np.zeros(shape, dtype=storage(name))
    values.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = to_torch(values, name)
    assert (tensor.dtype, tuple(tensor.shape)) == (getattr(torch, name), shape)
    assert not values.size or tensor.data_ptr() == values.ctypes.data
    assert not values.flags.writeable


def test_writing_into_a_tensor_over_memory_that_nobody_may_write_ends_the_process_as_the_documents_say():
    code = (
        "import mmap, resource, numpy; from transfer_queue.codec import to_torch; resource.setrlimit(resource.RLIMIT_CORE, (0, 0));"
        "tensor = to_torch(numpy.frombuffer(mmap.mmap(-1, 4096, prot=mmap.PROT_READ), dtype='float32'));"
        "print(float(tensor.sum() + tensor.clone().add_(1).sum()), flush=True); tensor.add_(1)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60, capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("1024.0", -signal.SIGSEGV), done.stderr


def test_a_tensor_keeps_the_memory_it_looks_at():
    tensor = to_torch(np.frombuffer(bytes(range(256)) * 4096, dtype="uint8")[1:])  # the only reference to the bytes
    junk = [bytes(1 << 20) for _ in range(4)]
    assert tensor[:255].tolist() == list(range(1, 256))
    del junk


def test_misaligned_reversed_and_swapped_arrays_are_copied():
    data = np.frombuffer(bytes(17), dtype="uint8")[1:].view("float32")
    assert not data.flags.aligned
    assert to_torch(data).tolist() == [0.0] * 4
    assert to_torch(np.arange(3.0)[::-1]).tolist() == [2, 1, 0]
    assert to_torch(np.arange(3, dtype=">i4"), "int32").tolist() == [0, 1, 2]


def test_converted_or_masked_values_are_not_taken_for_bits():
    with pytest.raises(TypeError, match="bfloat16 is stored as uint16, got float32"):
        to_torch(np.zeros(2, dtype="float32"), "bfloat16")
    with pytest.raises(ValueError, match="masked"):
        to_torch(np.ma.masked_array([1.0, 2.0], mask=[True, False]))


@pytest.mark.parametrize("name", [name for name in TRAVELLING if name not in BITS])
def test_torch_columns_equal_numpy_columns(name):
    values = np.arange(12).reshape(3, 4).astype(name)
    packed = pack("x", torch.from_numpy(values).t())
    assert packed.values.tobytes() == np.ascontiguousarray(values.T).tobytes()
    assert received(packed, column(name, "per_token")).dense().tolist() == values.T.tolist()
