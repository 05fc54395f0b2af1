"""A queue in a folder, through the calls that verl makes, on real processes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from transfer_queue.compat import init as queue
from transfer_queue.compat.checkpoint import load_checkpoint, save_checkpoint
from transfer_queue.compat.door import door
from transfer_queue.errors import QueueError
from transfer_queue.keyed import KeyedClient, Put
from transfer_queue.saving import folder as saved_folder
from transfer_queue.saving.folder import Damaged

WAIT_S = 30.0


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("TRANSFER_QUEUE_URL", raising=False)
    queue.init({"asyncflow": {"capacity_bytes": 1 << 26}})
    yield
    queue.close()


def put(key: str, value: float) -> None:
    def ask(client: KeyedClient) -> Put:
        return client.put("train", [key], {"x": np.full((1, 3), value)}, [{"value": value}])

    door().call(ask).result(WAIT_S)


def held() -> dict[str, tuple[float, float]]:
    """Key → its value in the tag, and in the column."""

    def ask(client: KeyedClient) -> dict[str, tuple[float, float]]:
        tags = client.list_keys(["train"]).get("train", {})
        return {key: (tag["value"], float(np.asarray(client.get("train", [key])["x"][0])[0])) for key, tag in tags.items()}

    return door().call(ask).result(WAIT_S)


def again() -> None:
    queue.close()
    queue.init({"asyncflow": {"capacity_bytes": 1 << 26}})


def test_what_was_saved_is_there_after_a_load_into_a_new_queue_with_its_metadata_beside_it(tmp_path: Path) -> None:
    put("b", 2.0)
    put("a", 1.0)
    before = held()
    save_checkpoint(tmp_path / "step_1" / "transfer_queue", metadata={"step": 1})
    put("a", 3.0)
    again()
    assert held() == {}
    load_checkpoint(tmp_path / "step_1" / "transfer_queue")
    assert list(held().items()) == list(before.items()) == [("b", (2.0, 2.0)), ("a", (1.0, 1.0))]
    assert json.loads((tmp_path / "step_1" / "transfer_queue" / "metadata.json").read_text()) == {"user_metadata": {"step": 1}}
    put("c", 4.0)
    assert list(held()) == ["b", "a", "c"]


@pytest.mark.parametrize("exchanges", [True, False], ids=["in one step", "on a file system that cannot exchange names"])
def test_a_folder_that_is_there_is_replaced_while_others_write(tmp_path: Path, exchanges: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not exchanges:
        monkeypatch.setattr(saved_folder, "_EXCHANGE", 1 << 30)  # the kernel knows no such flag
    over = threading.Event()

    def write() -> None:
        turn = 0
        while not over.is_set():
            turn += 1
            put(f"k{turn % 50}", float(turn))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for step in range(3):
            save_checkpoint(tmp_path / "queue", metadata={"step": step})
            assert json.loads((tmp_path / "queue" / "metadata.json").read_text()) == {"user_metadata": {"step": step}}
            assert [path.name for path in tmp_path.iterdir()] == ["queue"]
    finally:
        over.set()
        thread.join(WAIT_S)
    again()
    load_checkpoint(tmp_path / "queue")
    found = held()
    assert found
    assert all(tag == value for tag, value in found.values())  # of one moment


def test_the_name_always_has_a_whole_checkpoint(tmp_path: Path) -> None:
    put("a", 1.0)
    save_checkpoint(tmp_path / "queue")
    missed: list[str] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            for name in ("state", "bytes", "metadata.json"):
                if not (tmp_path / "queue" / name).exists():
                    missed.append(name)

    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(10):
        save_checkpoint(tmp_path / "queue")
    over.set()
    thread.join(WAIT_S)
    assert missed == []


def test_a_save_that_fails_leaves_the_one_before_and_nothing_else(tmp_path: Path) -> None:
    put("a", 1.0)
    save_checkpoint(tmp_path / "queue", metadata={"step": 1})
    with pytest.raises(TypeError):
        save_checkpoint(tmp_path / "queue", metadata={"step": object()})
    queue.close()
    with pytest.raises(RuntimeError, match="init"):
        save_checkpoint(tmp_path / "queue")
    assert [path.name for path in tmp_path.iterdir()] == ["queue"]
    assert json.loads((tmp_path / "queue" / "metadata.json").read_text()) == {"user_metadata": {"step": 1}}


def test_a_folder_that_is_no_checkpoint_is_refused_and_stays(tmp_path: Path) -> None:
    put("a", 1.0)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "weights").write_text("dear")
    with pytest.raises(FileExistsError, match="no saved queue"):
        save_checkpoint(tmp_path / "run")
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "weights"]
    (tmp_path / "empty").mkdir()
    save_checkpoint(tmp_path / "empty")
    assert (tmp_path / "empty" / "state").is_file()


def test_a_link_stays_one_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    put("a", 1.0)
    (tmp_path / "newest").symlink_to("queue")
    for step in range(2):
        save_checkpoint(tmp_path / "newest", metadata={"step": step})
    assert (tmp_path / "newest").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["newest", "queue"]
    assert json.loads((tmp_path / "queue" / "metadata.json").read_text()) == {"user_metadata": {"step": 1}}


def test_what_a_saver_left_that_was_killed_between_two_names_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_folder, "_EXCHANGE", 1 << 30)  # the kernel knows no such flag
    put("a", 1.0)
    save_checkpoint(tmp_path / "queue")
    (tmp_path / "queue").rename(tmp_path / "queue-replaced")
    for _ in range(2):
        save_checkpoint(tmp_path / "queue")
    assert [path.name for path in tmp_path.iterdir()] == ["queue"]


def test_a_load_over_keys_or_of_no_checkpoint_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    put("a", 1.0)
    save_checkpoint(tmp_path / "queue")
    put("b", 2.0)
    with pytest.raises(QueueError, match="have keys"):
        load_checkpoint(tmp_path / "queue")
    assert list(held()) == ["a", "b"]
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "metadata.json").write_text("{}")
    for none in ("theirs", "missing"):
        with pytest.raises(FileNotFoundError, match=none):
            load_checkpoint(tmp_path / none)
    again()
    state = tmp_path / "queue" / "state"
    state.write_bytes(state.read_bytes()[:-3])
    with pytest.raises(Damaged):
        load_checkpoint(tmp_path / "queue")
    assert held() == {}
