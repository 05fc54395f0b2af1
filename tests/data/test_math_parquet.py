"""The mathematical task: prompts by the model's template, what is left out counted, held-out questions never trained, zeros with their reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from asyncflow.data.math_parquet import MathParquet
from asyncflow.data.parquet import DataError
from asyncflow.data.task import Counted, Judge
from asyncflow.rewards.verdict import Verdict
from tests.data.math_files import TEMPLATE, row, sums, write_rows, write_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer, and files of 40 and 10 questions, of which 4 are in both."""
    folder = tmp_path_factory.mktemp("math")
    write_tokenizer(folder / "model")
    write_rows(folder / "train.parquet", sums(40))
    write_rows(folder / "test.parquet", sums(46)[36:])
    return folder


def task_of(folder: Path, **options: Any) -> MathParquet:
    given = {
        "seed": 1,
        "tokenizer": str(folder / "model"),
        "train": str(folder / "train.parquet"),
        "held_out": [str(folder / "test.parquet")],
        "prompt_width": 16,
        "item_bytes": 64,
        "compare_s": 60,
    }
    return MathParquet(**(given | options))


@pytest.fixture(scope="module")
def task(folder: Path) -> Iterator[MathParquet]:
    task = task_of(folder)
    yield task
    task.close()


def ids(task: MathParquet, text: str, end: bool = True) -> list[int]:
    eos = task.tokenizer.eos_token_id
    return [*task.tokenizer.encode(text, add_special_tokens=False), *([eos] if end else [])]


def test_a_prompt_is_what_the_models_template_writes(task: MathParquet, folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    prompts = {task.tokenizer.decode(task.prompt(gid)[0]) for gid in range(36)}
    assert "<0+7?>" in {prompt.replace(" ", "") for prompt in prompts}
    tokens, item = task.prompt(3)
    assert tokens == tokenizer(tokenizer.decode(tokens), add_special_tokens=False)["input_ids"]
    assert json.loads(item)["truths"]


def test_the_order_is_endless_seeded_and_can_be_rewound(task: MathParquet, folder: Path) -> None:
    again = task_of(folder)
    assert [again.prompt(gid) for gid in (70, 3, 35)] == [task.prompt(gid) for gid in (70, 3, 35)]
    epochs = [[task.prompt(epoch * 36 + place) for place in range(36)] for epoch in (0, 1)]
    assert epochs[0] != epochs[1]
    assert sorted(map(str, epochs[0])) == sorted(map(str, epochs[1]))
    assert [task_of(folder, seed=2).prompt(gid) for gid in range(36)] != epochs[0]


def test_held_out_questions_are_the_same_for_every_seed_and_are_never_trained(task: MathParquet, folder: Path) -> None:
    held_out = task.held_out(10)
    assert held_out == task_of(folder, seed=2).held_out(10)
    assert held_out[:4] == task.held_out(4)
    asked = {tuple(task.prompt(gid)[0]) for gid in range(36)}
    assert not asked & {tuple(example.prompt_ids) for example in held_out}
    assert task.counts == {"rows": 40, "kept": 36, "too_long": 0, "held_out": 4, "held_out_repeats": 0}
    assert isinstance(task, Counted)
    assert isinstance(task, Judge)


def test_more_held_out_questions_than_there_are_is_refused(task: MathParquet) -> None:
    with pytest.raises(DataError, match=r"evaluation\.items = 11: .*test\.parquet has 10 questions.*Fix: evaluation\.items=10$"):
        task.held_out(11)


def test_without_a_file_a_share_is_held_out_by_the_questions_own_text(folder: Path) -> None:
    task, other = (task_of(folder, held_out=(), held_out_share=0.3, seed=seed) for seed in (1, 2))
    counts = task.counts
    assert counts == other.counts
    assert 4 <= counts["held_out"] <= 20
    held_out = task.held_out(counts["held_out"])
    assert {example.question for example in held_out} == {example.question for example in other.held_out(counts["held_out"])}
    assert not {tuple(example.prompt_ids) for example in held_out} & {tuple(task.prompt(gid)[0]) for gid in range(counts["kept"])}


def test_a_held_out_question_that_is_there_twice_is_evaluated_once_and_what_is_left_out_is_said(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_rows(folder / "twice.parquet", [row("1+1?", "2"), row("1+2?", "3"), row("1+1?", "2"), row("1+2?", "4"), row("1+1?", "2")])
    task = task_of(folder, held_out=str(path))
    assert {(example.question, example.item) for example in task.held_out(2)} == {
        ("user: 1+1?", b'{"truths":["2"]}'),
        ("user: 1+2?", b'{"truths":["3"]}'),
    }
    assert task.counts["held_out_repeats"] == 3
    assert "twice.parquet: 3 rows ask a held-out question that is asked before and are left out, 1 of them with another right answer" in caplog.text
    with pytest.raises(DataError, match=r"evaluation\.items = 3: .*has 2 questions \(3 rows more ask one of them again\).*Fix: evaluation\.items=2$"):
        task.held_out(3)


def test_held_out_rows_that_are_all_the_same_are_one_question(folder: Path) -> None:
    path = write_rows(folder / "same.parquet", [row("1+1?", "2")] * 7)
    task = task_of(folder, held_out=[str(path), str(path)])
    assert [example.question for example in task.held_out(1)] == ["user: 1+1?"]
    assert task.counts["held_out_repeats"] == 13


def test_a_share_of_questions_that_are_there_twice_is_evaluated_once_and_never_trained(folder: Path) -> None:
    path = write_rows(folder / "doubled.parquet", sums(40) * 2)
    task, once = (task_of(folder, train=str(train), held_out=(), held_out_share=0.3) for train in (path, folder / "train.parquet"))
    repeats = once.counts["held_out"]
    assert task.counts == {"rows": 80, "kept": 80 - 2 * repeats, "too_long": 0, "held_out": 2 * repeats, "held_out_repeats": repeats}
    assert task.held_out(repeats) == once.held_out(repeats)


def test_prompts_that_are_too_long_are_left_out_and_counted(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_rows(folder / "long.parquet", [*sums(6), row("1" * 30, "1"), row("2" * 14, "2"), row("3" * 15, "3")])
    task = task_of(folder, train=str(path), held_out=())
    assert task.counts == {"rows": 9, "kept": 7, "too_long": 2, "held_out": 0, "held_out_repeats": 0}
    assert max(len(task.prompt(gid)[0]) for gid in range(14)) == 16
    assert "above rollout.prompt_width = 16" in caplog.text


def test_a_file_of_which_nothing_is_left_is_refused(folder: Path) -> None:
    path = write_rows(folder / "longer.parquet", [row("1" * 30, "1")])
    with pytest.raises(DataError, match=r"no row is left to train on.*'too_long': 1.*Fix: a larger rollout\.prompt_width"):
        task_of(folder, train=str(path), held_out=()).prompt(0)


def test_where_every_question_is_held_out_the_fix_is_not_a_larger_width(folder: Path) -> None:
    with pytest.raises(DataError, match=r"no row is left to train on.*'held_out': 40.*Fix: other files in task\.options\.held_out"):
        task_of(folder, held_out=str(folder / "train.parquet")).prompt(0)


def test_a_row_that_the_models_template_does_not_take_is_named(folder: Path) -> None:
    template = "{% for m in messages %}{{ raise_exception('Only user roles') if m.role == 'system' }}<{{ m.content }}{% endfor %}>"
    strict = write_tokenizer(folder / "strict", template=template)
    path = write_rows(folder / "roles.parquet", [row("1+1?", "2"), row("", "2", prompt=[{"role": "system", "content": "brief"}])])
    with pytest.raises(DataError, match=r"roles\.parquet, row 1, prompt = .*take it \(TemplateError: Only user roles\).*Fix: write it as"):
        task_of(folder, tokenizer=str(strict), train=str(path), held_out=()).prompt(0)


@pytest.mark.parametrize("named", [5, [None], "", {"train": "x"}])
def test_what_names_no_file_is_refused(folder: Path, named: Any) -> None:
    with pytest.raises(ValueError, match=r"task\.options\.train = .*: it must be the name of a file, or a list.*Fix: task\.options\.train=FILE"):
        task_of(folder, train=named)
    with pytest.raises(ValueError, match=r"task\.options\.train = \[\]: it must name a file"):
        task_of(folder, train=[])


def test_a_held_out_question_is_never_left_out_in_silence(folder: Path) -> None:
    path = write_rows(folder / "longest.parquet", [row("1+1?", "2"), row("1" * 30, "1")])
    with pytest.raises(DataError, match=r"row 1, prompt = .*it has 32 tokens where rollout\.prompt_width = 16.*Fix: rollout\.prompt_width=32"):
        task_of(folder, held_out=str(path)).held_out(1)


def test_a_truth_that_does_not_fit_into_an_item_is_refused(folder: Path) -> None:
    path = write_rows(folder / "truth.parquet", [row("1+1?", "2" * 60)])
    with pytest.raises(DataError, match=r"row 0, reward_model\.ground_truth = .*task\.item_bytes = 64.*Fix: task\.item_bytes=75"):
        task_of(folder, train=str(path), held_out=()).prompt(0)


def test_several_files_are_one_set(folder: Path) -> None:
    path = write_rows(folder / "more.parquet", [row("7*8?", "56")])
    task = task_of(folder, train=[str(folder / "train.parquet"), str(path)], held_out=())
    assert task.counts["kept"] == 41


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("so #### 7", Verdict.RIGHT),
        ("so \\boxed{7}", Verdict.RIGHT),
        ("3+4=7", Verdict.RIGHT),
        ("\\boxed{14/2}", Verdict.RIGHT),
        ("#### 8", Verdict.WRONG),
        ("no number", Verdict.NO_ANSWER),
        ("", Verdict.NO_ANSWER),
    ],
)
def test_a_finished_response_gets_the_verdict_of_its_answer(task: MathParquet, answer: str, verdict: Verdict) -> None:
    item = b'{"truths":["7"]}'
    assert task.verdict(item, ids(task, answer)) is verdict
    assert task.score(item, ids(task, answer)) == float(verdict is Verdict.RIGHT)


def test_what_was_cut_off_is_no_answer(task: MathParquet) -> None:
    assert task.verdict(b'{"truths":["7"]}', ids(task, "#### 7", end=False)) is Verdict.UNFINISHED
    assert task.verdict(b'{"truths":["7"]}', []) is Verdict.UNFINISHED


def test_a_broken_item_is_an_error_and_no_zero(task: MathParquet) -> None:
    with pytest.raises(ValueError, match="none of this task"):
        task.verdict(b"7", ids(task, "7"))


def test_responses_end_where_the_engines_end_them(folder: Path, tmp_path: Path) -> None:
    """rollout.stop_token_ids, else config.json's, else the tokenizer's: as for the rollout engines."""
    item, model = b'{"truths":["7"]}', write_tokenizer(tmp_path / "model")
    digits = [*task_of(folder).tokenizer.encode("7", add_special_tokens=False)]
    (model / "config.json").write_text(json.dumps({"model_type": "qwen2", "eos_token_id": [9, 5]}))
    assert task_of(folder, tokenizer=str(model)).verdict(item, [*digits, 5]) is Verdict.RIGHT
    assert task_of(folder, tokenizer=str(model)).verdict(item, [*digits, 2]) is Verdict.UNFINISHED
    assert task_of(folder, tokenizer=str(model), stop_token_ids=[6]).verdict(item, [*digits, 6]) is Verdict.RIGHT


def test_a_folder_without_tokenizer_or_chat_template_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"task\.options\.tokenizer = .*Fix: models\.policy\.path=FOLDER"):
        task_of(folder, tokenizer=str(tmp_path)).prompt(0)
    write_tokenizer(tmp_path / "plain", template=None)
    with pytest.raises(ValueError, match="has no chat template"):
        task_of(folder, tokenizer=str(tmp_path / "plain")).prompt(0)
    assert TEMPLATE


@pytest.mark.parametrize("share", [-0.1, 1.0, 0.5])
def test_a_share_that_cannot_be_is_refused(folder: Path, share: float) -> None:
    with pytest.raises(ValueError, match=r"task\.options\.held_out_share"):
        task_of(folder, held_out_share=share)


def test_a_run_without_held_out_questions_cannot_be_evaluated(folder: Path) -> None:
    with pytest.raises(DataError, match=r"has 0 questions.*Fix: task\.options\.held_out=FILE$"):
        task_of(folder, held_out=()).held_out(1)


def test_a_file_that_is_not_there_is_mended_by_the_option_that_names_it(folder: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.parquet: there is no such file.*Fix: task\.options\.held_out=FILE"):
        task_of(folder, held_out="nowhere.parquet").prompt(0)
    with pytest.raises(DataError, match=r"nowhere\.parquet: there is no such file.*Fix: task\.options\.train=FILE"):
        task_of(folder, train="nowhere.parquet").prompt(0)


def test_null_names_no_held_out_file(folder: Path) -> None:
    """As a command line takes a recipe's file away."""
    assert task_of(folder, held_out=None).counts == task_of(folder, held_out=()).counts
