"""Padding: every value lands in its cell, nothing else is written, and what does not fit is refused by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncflow.contracts.batch import StageBatch
from asyncflow.data.batch import BatchShape, pad_rows, unpad
from asyncflow.data.rows import by_group, joined, part
from transfer_queue.columns import Jagged

SHAPE = BatchShape(rows=6, prompt_width=4, response_width=5, pad_token_id=9)


def stage_batch(prompts: list[list[int]], responses: list[list[int]], gids: list[int] | None = None) -> StageBatch:
    count = len(prompts)
    numbers = np.array(gids if gids is not None else range(count), dtype=np.int64)
    batch = StageBatch(numbers, np.arange(count, dtype=np.int32), numbers, numbers)
    batch.columns["prompt_ids"] = Jagged.of(prompts, "int32")
    batch.columns["response_ids"] = Jagged.of(responses, "int32")
    batch.columns["old_logprobs"] = Jagged.of([[-0.5 * token for token in run] for run in responses], "float32")
    batch.columns["finish"] = np.zeros(count, dtype=np.uint8)
    batch.columns["item"] = [b"x"] * count
    return batch


tokens = st.integers(min_value=0, max_value=8)
rows_of_tokens = st.lists(st.tuples(st.lists(tokens, min_size=1, max_size=4), st.lists(tokens, max_size=5)), min_size=1, max_size=6)


@given(rows_of_tokens)
@settings(max_examples=60, deadline=None)
def test_every_row_is_prompt_then_response_then_padding(rows: list[tuple[list[int], list[int]]]) -> None:
    batch = pad_rows(stage_batch([p for p, _ in rows], [r for _, r in rows]), SHAPE)
    assert batch.input_ids.shape == (6, 9)
    for row, (prompt, response) in enumerate(rows):
        assert batch.input_ids[row].tolist() == prompt + response + [9] * (9 - len(prompt) - len(response))
        assert batch.attention_mask[row].tolist() == [True] * (len(prompt) + len(response)) + [False] * (9 - len(prompt) - len(response))
        assert batch.response_mask[row].tolist() == [True] * len(response) + [False] * (5 - len(response))
        assert batch.columns["old_logprobs"][row].tolist() == [-0.5 * token for token in response] + [0.0] * (5 - len(response))
    assert not batch.response_mask[len(rows) :].any()
    assert batch.real_rows == len(rows)
    assert "item" not in batch.columns


@given(rows_of_tokens)
@settings(max_examples=30, deadline=None)
def test_unpad_gives_the_runs_back(rows: list[tuple[list[int], list[int]]]) -> None:
    source = stage_batch([p for p, _ in rows], [r for _, r in rows])
    runs = unpad(pad_rows(source, SHAPE).columns["old_logprobs"], source.jagged("response_ids").lengths)
    assert runs.values.tolist() == source.jagged("old_logprobs").values.tolist()
    assert runs.offsets.tolist() == source.jagged("old_logprobs").offsets.tolist()


def test_a_missing_log_probability_is_refused_and_never_zero() -> None:
    batch = stage_batch([[1], [1]], [[1, 2], [3]])
    batch.columns["old_logprobs"] = Jagged.of([[-0.1], [-0.2]], "float32")
    with pytest.raises(ValueError, match="'old_logprobs' of group 0 row 0 has 1 values for 2 response tokens"):
        pad_rows(batch, SHAPE)


def test_what_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"group 0 row 0 has 6 tokens where rollout.response_width = 5"):
        pad_rows(stage_batch([[1]], [[1] * 6]), SHAPE)
    with pytest.raises(ValueError, match=r"rollout.prompt_width = 4"):
        pad_rows(stage_batch([[1] * 5], [[1]]), SHAPE)
    with pytest.raises(ValueError, match="7 rows exceeds"):
        pad_rows(stage_batch([[1]] * 7, [[1]] * 7), SHAPE)


def test_integers_stay_exact_and_floats_are_float32() -> None:
    batch = stage_batch([[1]], [[1]])
    batch.columns["token_versions"] = Jagged.of([[2**31 - 1]], "int32")
    padded = pad_rows(batch, SHAPE)
    assert padded.columns["token_versions"].dtype == torch.int64
    assert padded.columns["token_versions"][0, 0] == 2**31 - 1
    assert padded.columns["old_logprobs"].dtype == torch.float32


def test_groups_come_apart_and_together_again() -> None:
    batch = stage_batch([[1], [2], [3], [4]], [[1], [2, 2], [], [4, 4, 4]], gids=[5, 5, 2, 7])
    groups = list(by_group(batch))
    assert [group.gids.tolist() for group in groups] == [[5, 5], [2], [7]]
    whole = joined([group.jagged("response_ids") for group in groups])
    assert whole.values.tolist() == batch.jagged("response_ids").values.tolist()
    assert part(batch, 1, 3, ("response_ids",)).columns.keys() == {"response_ids"}
    assert list(by_group(part(batch, 0, 0))) == []
