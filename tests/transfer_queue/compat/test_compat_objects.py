"""Python values beyond the codec's come back as themselves, or are refused by name."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import DictConfig, ListConfig, OmegaConf

from transfer_queue.codec.objects import unpack_objects
from transfer_queue.compat.objects import MARK, pack_values, unpacked_value


def back(*values: Any) -> list[Any]:
    packed = pack_values("c", values)
    return [unpacked_value(value) for value in unpack_objects("c", packed.values, packed.offsets)]


VALUES = [
    *(None, True, -5, 2**64, -(2**63) - 1, 0.5, "é", b"\xff", [1, [2]], (1, (2, "x")), {"a": {"b": None}}, {1: 2}, {(1, 2): 3}, {None: 1, 2**80: 2}),
    *({1, 2}, frozenset({"a"}), complex(1, -2), range(1, 9, 2), bytearray(b"x"), np.str_("s"), np.bytes_(b"s"), np.int8(3), np.float32(0.1)),
    *(OrderedDict(b=1, a=(2,)), deque([1, {2}], maxlen=4), torch.Size([2, 3]), {"deep": [{"set": {1}}, (np.str_("x"),)]}),
    *((MARK,), (MARK, "int", "5"), [(MARK, 1)], {"x": (MARK, "builtins.set", [1])}),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_comes_back_with_its_type(value: Any) -> None:
    for found in (back(value)[0], back({"in": [value]})[0]["in"][0], back({1}, value)[1]):
        assert found == value
        assert type(found) is type(value)


@pytest.mark.parametrize(
    "array", [np.array([{"a": 1}, None, [1, 2]], dtype=object), np.array([["x", "yy"]]), np.array([b"a", b"bcd"]), np.array([], dtype=object)]
)
def test_arrays_that_are_no_numbers_come_back_with_dtype_and_shape(array: np.ndarray) -> None:
    (found,) = back(array)
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    assert found.tolist() == array.tolist()


def test_configurations_keep_their_interpolations() -> None:
    config = OmegaConf.create({"a": 1, "b": "${a}", "c": [1, {"d": 2}]})
    found, items = back(config, config.c)
    assert type(found) is DictConfig
    assert type(items) is ListConfig
    assert found == config
    assert OmegaConf.to_container(found, resolve=False)["b"] == "${a}"


def test_a_defaultdict_comes_back_as_a_dict() -> None:
    (found,) = back(defaultdict(list, a=[1]))
    assert found == {"a": [1]}
    assert type(found) is dict


def test_tensors_among_others_keep_dtype_and_bits() -> None:
    value = {"x": torch.tensor([float("nan"), -0.0], dtype=torch.bfloat16), "s": {1}}
    (found,) = back(value)
    assert found["x"].dtype == torch.bfloat16
    assert torch.equal(found["x"].view(torch.int16), value["x"].view(torch.int16))


def test_what_nobody_knows_is_refused_by_column_row_and_type() -> None:
    class Strange:
        pass

    with pytest.raises(TypeError, match=r"column 'c', row 1: a .*Strange would not come back"):
        pack_values("c", [1, {"x": [Strange()]}])
    with pytest.raises(TypeError, match="Strange"):
        pack_values("c", [{1}, Strange()])
