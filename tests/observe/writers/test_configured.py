"""Which writers a configuration asks for, and what it says when they cannot be had."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from asyncflow.config.check import check, check_runnable
from asyncflow.config.errors import ConfigError
from asyncflow.config.observe import WRITER_PACKAGES
from asyncflow.config.rules.observe import packages
from asyncflow.observe.summary import summarise
from asyncflow.observe.writers.configured import configured
from tests.observe.live.run_files import append, run_config, step
from tests.observe.writers.own import Words


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("observe.writers=[tensorbord]", "there is no writer 'tensorbord', did you mean 'tensorboard'?"),
        ("observe.writers=[tensorboard,tensorboard]", "each is named once"),
        ("observe.writer_close_s=0", "observe.writer_close_s = 0"),
        ("observe.prometheus_bind=9090", "it must be a text or null"),
        ("observe.prometheus_bind=9090", "Fix: observe.prometheus_bind=127.0.0.1:9090"),
        ("observe.prometheus_bind=':9090'", "it names host and port"),
        ("observe.prometheus_bind='localhost:http'", "'http' is no port"),
        ("observe.prometheus_bind='localhost:70000'", "'70000' is no port"),
        ("observe.view=picture", "observe.view = 'picture'"),
    ],
)
def test_a_mistake_is_told_with_its_key_and_a_fix(tmp_path: Path, override: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        run_config(tmp_path, override)
    assert str(error.value).startswith("observe.")
    assert words in str(error.value)
    assert re.search("Fix: '?observe[.]", str(error.value))


def test_a_package_that_is_missing_is_told_with_the_command_that_brings_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = run_config(tmp_path, "observe.writers=[tensorboard,wandb]")
    monkeypatch.setitem(WRITER_PACKAGES, "wandb", "a_package_that_nobody_has")
    check(config)  # whether it is installed is this machine's matter, not the configuration's
    with pytest.raises(ConfigError, match=r"a-package-that-nobody-has.*pip install 'asyncflow\[wandb\]'.*observe.writers=\[tensorboard\]"):
        packages(config)


def test_a_writer_of_ones_own_must_be_there_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"observe.writers.*there is no module 'nowhere'"):
        packages(run_config(tmp_path, "observe.writers=['nowhere:make']"))


def test_a_writer_of_ones_own_is_a_class_and_a_line_of_yaml(tmp_path: Path) -> None:
    words, config = Words(), run_config(tmp_path, "observe.writers=['tests.observe.writers.own:Plain']")
    packages(config)
    with configured(config, words.say) as writers:
        append(config.run_dir, step(1))
        writers.close(summarise(config.run_dir, "completed", 1.0, {}))
    assert (config.run_dir / "plain.txt").read_text() == "step 1\nclosed completed"
    assert words.lines == []


def test_a_run_without_writers_loads_none_of_their_packages() -> None:
    code = "import sys, asyncflow.cli.train; sys.exit(bool({'tensorboard', 'wandb', 'prometheus_client', 'torch'} & sys.modules.keys()))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_check_of_packages_is_part_of_what_train_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WRITER_PACKAGES, "tensorboard", "a_package_that_nobody_has")
    with pytest.raises(ConfigError, match="a-package-that-nobody-has"):
        check_runnable(run_config(tmp_path, "observe.writers=[tensorboard]", "task.path='asyncflow.data.number_sorting:NumberSorting'"))
