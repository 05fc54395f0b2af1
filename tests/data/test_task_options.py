"""`task.options` are arguments of a factory: what it does not have, or needs, is named before it is called."""

from __future__ import annotations

from typing import Any

import pytest

from asyncflow.config import RunConfig
from asyncflow.config.errors import SettingError
from asyncflow.config.task import TaskSettings
from asyncflow.data.task import load_task

PARQUET = "asyncflow.data.math_parquet:MathParquet"
HERE = f"{__name__}:takes_all"


def takes_all(**options: Any) -> dict[str, Any]:
    return options


def config(path: str, options: dict[str, Any]) -> RunConfig:
    return RunConfig(task=TaskSettings(path=path, options=options))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"trian": "a.parquet"}, r"task\.options\.trian = 'a\.parquet': .*MathParquet has no such option, did you mean 'train'\?.*Fix: "),
        ({"tokenizer": "here", "prompt_width": 8, "item_bytes": 8}, r"task\.options\.train: .*MathParquet needs it, and it is not given.*Fix: "),
    ],
)
def test_an_option_that_a_task_does_not_have_or_needs_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        load_task(config(PARQUET, options))


def test_a_task_that_takes_whatever_comes_gets_it_and_the_seed() -> None:
    run = config(HERE, {"mine": 1})
    assert load_task(run) == {"mine": 1, "seed": run.run.seed}
