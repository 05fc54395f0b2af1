"""Key files are looked at before anything starts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncflow.config.check import check_runnable
from asyncflow.config.errors import SettingError
from tests.config.recipes import RUNNABLE, load_text
from transfer_queue.keys import write


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    write(tmp_path / "keys")
    return tmp_path / "keys"


def checked(server: Path, *overrides: str) -> None:
    check_runnable(load_text(server.parent.parent, RUNNABLE, f"queue.key_file={server}", *overrides))


def test_keys_of_one_making_serve(keys: Path) -> None:
    checked(keys / "server.key")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda keys: (keys / "server.key").unlink(), ["queue.key_file", "no such file"]),
        (lambda keys: (keys / "client.key").unlink(), ["queue.client_key_file", "no such file"]),
        (lambda keys: (keys / "server.key").chmod(0o644), ["queue.key_file", "0644"]),
        (lambda keys: (keys / "server.key").write_text("{}"), ["queue.key_file", "server_public"]),
        (lambda keys: shutil.copyfile(keys / "client.key", keys / "server.key"), ["queue.key_file", "worker's"]),
    ],
)
def test_a_key_file_that_secures_nothing_is_refused_with_key_and_reason(keys: Path, spoil: Callable[[Path], object], words: list[str]) -> None:
    spoil(keys)
    with pytest.raises(SettingError) as refusal:
        checked(keys / "server.key")
    for word in (*words, "python -m transfer_queue keys"):
        assert word in str(refusal.value)


def test_files_of_two_makings_are_refused(keys: Path, tmp_path: Path) -> None:
    write(tmp_path / "others")
    with pytest.raises(SettingError, match=r"client_key_file.*same making"):
        checked(keys / "server.key", f"queue.client_key_file={tmp_path}/others/client.key")
