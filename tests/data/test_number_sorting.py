"""The task: pure, splits apart, answers of very different length, scored by the dataset's own scorer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from asyncflow.data.number_sorting import ALPHABET, NumberSorting
from asyncflow.data.split import SHARES, Split, split_of
from asyncflow.data.tokenizer import char_tokenizer

TOKENIZER = char_tokenizer(ALPHABET)
SPLITS: tuple[Split, ...] = ("train", "warm_start", "validation", "held_out")


@pytest.fixture(scope="module")
def task() -> NumberSorting:
    return NumberSorting(seed=1)


def response(task: NumberSorting, text: str) -> list[int]:
    return [*task.tokenizer.encode(text, add_special_tokens=False), task.tokenizer.eos_token_id]


def test_an_item_is_a_pure_function_of_seed_and_index(task: NumberSorting) -> None:
    again = NumberSorting(seed=1)
    assert [again.example("train", index) for index in (7, 0, 3)] == [task.example("train", index) for index in (7, 0, 3)]
    assert [task.prompt(gid)[0] for gid in range(20)] != [NumberSorting(seed=2).prompt(gid)[0] for gid in range(20)]


def test_runs_of_every_seed_are_evaluated_on_the_same_questions(task: NumberSorting) -> None:
    assert task.held_out(50) == NumberSorting(seed=2).held_out(50)


def test_held_out_questions_are_different_and_in_no_other_split(task: NumberSorting) -> None:
    held_out = {example.question for example in task.held_out(512)}
    assert len(held_out) == 512
    for split in ("train", "warm_start", "validation"):
        others = {task.example(split, index).question for index in range(800)}
        assert not held_out & others, f"{split} shares questions with held_out"


def test_demonstrations_are_of_the_warm_start_split(task: NumberSorting) -> None:
    assert [task.demonstration(i).question for i in range(50)] == [task.example("warm_start", i).question for i in range(50)]


def test_shares_of_the_splits_are_all_of_the_questions() -> None:
    assert sum(SHARES.values()) == 100
    assert set(SHARES) == set(SPLITS)


def test_of_the_ten_lists_of_one_digit_half_are_taught_and_half_are_trained_on() -> None:
    """Taught fewer, the warm start learns those by heart and never ends another answer after one number: training then sees no short answers."""
    splits = [split_of(f"{digit}=") for digit in range(10)]
    assert (splits.count("warm_start"), splits.count("train")) == (5, 5)


def test_answers_differ_in_length_by_a_factor_of_eight_or_more(task: NumberSorting) -> None:
    lengths = [len(task.example("train", index).answer_ids) for index in range(600)]
    p5, p95 = np.percentile(lengths, [5, 95])
    assert p95 / p5 >= 8


def test_prompts_and_answers_fit_the_quickstart_widths(task: NumberSorting) -> None:
    examples = [task.example("train", index) for index in range(600)]
    assert max(len(example.prompt_ids) for example in examples) == 11
    assert max(len(example.answer_ids) for example in examples) == 18


@pytest.mark.parametrize("split", SPLITS)
def test_the_perfect_answer_has_full_score(task: NumberSorting, split: Split) -> None:
    for index in range(40):
        example = task.example(split, index)
        assert task.score(example.item, example.answer_ids) == 1.0


def test_anything_but_the_sorted_list_scores_zero(task: NumberSorting) -> None:
    example = next(e for index in range(100) if len((e := task.example("train", index)).question) > 4)
    answer = task.tokenizer.decode(example.answer_ids[:-1])
    digits = answer.split(",")
    nearly = ",".join([*digits[:-1], str((int(digits[-1]) + 1) % 10)])
    for wrong in (nearly, answer + ",9", answer[:-2], answer.replace(",", ""), "", ",", answer + ",", "="):
        assert task.score(example.item, response(task, wrong)) == 0.0, wrong


def test_an_answer_one_off_is_wrong_though_the_dataset_alone_would_forgive_it(task: NumberSorting) -> None:
    item = b'{"original_numbers": ["5.0", "3.0"], "sorted_numbers": ["3.0", "5.0"]}'
    assert task.score(item, response(task, "3,5")) == 1.0
    assert task.score(item, response(task, "3,6")) == 0.0
    assert task.score(item, response(task, "2,5")) == 0.0


def test_an_answer_without_an_end_is_no_answer(task: NumberSorting) -> None:
    example = task.example("train", 0)
    assert task.score(example.item, example.answer_ids[:-1]) == 0.0
    assert task.score(example.item, []) == 0.0


def test_a_broken_item_is_an_error_and_not_a_score(task: NumberSorting) -> None:
    with pytest.raises(ValueError, match="cannot be scored"):
        task.score(b"{}", [2])


def test_the_teacher_stops_early_on_long_lists_only(task: NumberSorting) -> None:
    cut = 0
    for index in range(400):
        perfect, shown = task.example("warm_start", index), task.demonstration(index)
        if shown.answer_ids != perfect.answer_ids:
            cut += 1
            assert len(perfect.answer_ids) // 2 > 4
            assert shown.answer_ids == [*perfect.answer_ids[:7], task.tokenizer.eos_token_id]
    long = sum(len(task.example("warm_start", index).answer_ids) // 2 > 4 for index in range(400))
    assert 0.7 < cut / long < 0.9


@given(st.text(alphabet="0123456789,=", max_size=30))
@settings(max_examples=50, deadline=None)
def test_the_tokenizer_loses_nothing(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    assert len(ids) == len(text)
    assert TOKENIZER.decode(ids) == text


def test_saved_files_are_read_back_by_transformers(task: NumberSorting, tmp_path: object) -> None:
    task.tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(loaded, PreTrainedTokenizerFast)
    example = task.example("train", 3)
    assert loaded.encode(example.question) == example.prompt_ids
    assert (loaded.pad_token_id, loaded.bos_token_id, loaded.eos_token_id) == (0, 1, 2)
    assert loaded.decode(example.answer_ids, skip_special_tokens=True) == task.tokenizer.decode(example.answer_ids[:-1])


def test_settings_that_make_no_task_are_refused() -> None:
    with pytest.raises(ValueError, match="least = 3, most = 2"):
        NumberSorting(seed=1, least=3, most=2)
