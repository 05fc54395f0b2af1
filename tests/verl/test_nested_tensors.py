"""Two ways to one jagged tensor: TransferQueue 0.1.11 makes it of a list of rows, ours would make it of values and offsets, without a copy. Whatever
verl does with a column must not tell them apart."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.verl

LENGTHS = {"mixed": [3, 1, 4], "equal": [2, 2, 2], "one": [5], "with_empty": [2, 0, 3]}
TAILS: dict[str, tuple[int, ...]] = {"flat": (), "wide": (4,)}
DTYPES = [torch.int64, torch.float32, torch.bfloat16, torch.bool]


def rows(lengths: list[int], tail: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(sum(lengths))
    return [torch.randint(0, 2 if dtype == torch.bool else 50, (length, *tail), generator=generator).to(dtype) for length in lengths]


def of_rows(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged)


def of_values(parts: list[torch.Tensor]) -> torch.Tensor:
    """With the shortest and the longest length, which a list of rows leaves in the tensor too: padding goes by them."""
    lengths = [len(part) for part in parts]
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
    return torch.nested.nested_tensor_from_jagged(torch.cat(parts), offsets, min_seqlen=min(lengths), max_seqlen=max(lengths))


def through_a_file(nested: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(nested, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def in_a_dict(nested: torch.Tensor) -> Any:
    from tensordict import TensorDict

    return TensorDict({"a": nested}, batch_size=[nested.shape[0]])


def verl_index(nested: torch.Tensor, index: list[int]) -> torch.Tensor:
    from verl.utils import tensordict_utils

    return tensordict_utils.index_select_tensor_dict(in_a_dict(nested), torch.tensor(index))["a"]


def verl_concat(nested: torch.Tensor) -> torch.Tensor:
    from verl.utils import tensordict_utils

    return tensordict_utils.concat_tensordict([in_a_dict(nested), in_a_dict(nested)])["a"]


def verl_chunks(nested: torch.Tensor) -> list[torch.Tensor]:
    from verl.utils import tensordict_utils

    return [part["a"] for part in tensordict_utils.chunk_tensordict(in_a_dict(nested), nested.shape[0])]


USES: dict[str, Callable[[torch.Tensor], Any]] = {
    "values": lambda nested: nested.values(),
    "offsets": lambda nested: nested.offsets(),
    "lengths": lambda nested: nested.offsets().diff(),
    "size": lambda nested: (nested.size(0), nested.dim(), nested.is_nested, str(nested.layout), nested.is_contiguous()),
    "unbind": lambda nested: list(nested.unbind()),
    "row": lambda nested: nested[0],
    "iterated": lambda nested: list(nested),
    "padded": lambda nested: nested.to_padded_tensor(0),
    "padded_to": lambda nested: torch.nested.to_padded_tensor(nested, padding=0, output_size=(nested.shape[0], 9, *nested.shape[2:])),
    "sum_of_a_row": lambda nested: nested.float().sum(dim=1),
    "clone": lambda nested: nested.clone(),
    "converted": lambda nested: nested.to(torch.float32),
    "times_itself": lambda nested: nested * nested,
    "compared": lambda nested: nested == nested,
    "like": lambda nested: torch.zeros_like(nested),
    "saved": through_a_file,
    "in_a_dict": lambda nested: in_a_dict(nested)[0]["a"],
    "dict_cloned": lambda nested: in_a_dict(nested).clone()["a"],
    "dict_contiguous": lambda nested: in_a_dict(nested).contiguous()["a"],
    "verl_last_row_first": lambda nested: verl_index(nested, [nested.shape[0] - 1, 0]),
    "verl_concat": verl_concat,
    "verl_chunks": verl_chunks,
}


def plain(found: Any) -> Any:
    """What a use gave, comparable; an error by its type."""
    if isinstance(found, torch.Tensor):
        if found.is_nested:
            return "nested", str(found.dtype), [plain(part) for part in found.unbind()]
        return str(found.dtype), tuple(found.shape), found.tolist()
    return [plain(part) for part in found] if isinstance(found, list) else found


def outcome(use: Callable[[torch.Tensor], Any], nested: torch.Tensor) -> Any:
    try:
        return plain(use(nested))
    except Exception as error:  # both may fail, with the same
        return type(error).__name__


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)
@pytest.mark.parametrize("use", USES)
def test_values_and_offsets_give_what_a_list_of_rows_gives(use: str, lengths: list[int], tail: tuple[int, ...]) -> None:
    for dtype in DTYPES:
        parts = rows(lengths, tail, dtype)
        assert outcome(USES[use], of_values(parts)) == outcome(USES[use], of_rows(parts)), dtype


def test_without_the_longest_length_padding_goes_to_the_length_of_all_rows_together() -> None:
    parts = rows([3, 1, 4], (), torch.float32)
    bare = torch.nested.nested_tensor_from_jagged(torch.cat(parts), torch.tensor([0, 3, 4, 8]))
    assert bare.to_padded_tensor(0).shape == (3, 8)
    assert of_values(parts).to_padded_tensor(0).shape == of_rows(parts).to_padded_tensor(0).shape == (3, 4)


def test_columns_that_share_offsets_can_be_computed_with_and_those_of_rows_cannot() -> None:
    """What is gained beside the copy: verl multiplies a mask with values of another column."""
    parts = rows([3, 1, 4], (), torch.float32)
    first = of_values(parts)
    second = torch.nested.nested_tensor_from_jagged(first.values() + 1, first.offsets(), min_seqlen=1, max_seqlen=4)
    assert (first * second).values().tolist() == (first.values() * (first.values() + 1)).tolist()
    assert outcome(lambda nested: nested * of_rows(parts), of_rows(parts)) == "RuntimeError"


def test_it_is_the_memory_that_was_given() -> None:
    values = torch.arange(8)
    nested = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 3, 8]))
    assert nested.values().data_ptr() == values.data_ptr()
