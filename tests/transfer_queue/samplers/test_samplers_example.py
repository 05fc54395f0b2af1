"""The sampler of one's own on the page runs as it stands there; ranks and schema travel through real sockets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from samplers_desk import topic

from tests.packaging.markdown import DOCS, fences
from transfer_queue import messages as m
from transfer_queue.columns import Jagged
from transfer_queue.local import LocalQueue


def test_the_example_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = [fence.body for fence in fences(DOCS / "transfer_queue.md") if fence.language == "python" and "short_first" in fence.body]
    assert len(python) == 2
    (tmp_path / "short_first.py").write_text(python[0])
    monkeypatch.syspath_prepend(tmp_path)
    try:
        exec(compile(python[1], "docs/transfer_queue.md", "exec"), {})
    finally:
        sys.modules.pop("short_first", None)


def test_the_example_of_a_replay_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = [fence.body for fence in fences(DOCS / "transfer_queue.md") if fence.language == "python" and "Replay(" in fence.body]
    exec(compile(code, "docs/transfer_queue.md", "exec"), {})
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "[0.0, 1.0, 2.0, 3.0] and again [] replayed before: []"
    assert second.startswith("[4.0, 5.0, 6.0, 7.0] and again [")
    assert second.endswith("replayed before: [0, 0]")
    assert third.startswith("[8.0, 9.0, 10.0, 11.0] and again [")


def test_ranks_take_their_parts_through_a_running_queue() -> None:
    spec = topic(m.Sampler("length_balanced", {"ranks": 2}), unit="group")
    spec = m.TopicSpec("t", "policy", spec.columns[1:], spec.consumers, spec.window)
    with LocalQueue([spec]) as queue, queue.client("writer", "writer") as writer, queue.client("judge", "judge") as judge:
        lengths = [9, 8, 2, 1]
        writer.put("t", {"tokens": Jagged.of([range(length) for length in lengths], "uint8")}, tokens=lengths)
        parts = [judge.take("t", "judge", limit=2, rank=rank).result(10) for rank in (0, 1)]
        assert sorted(sorted(lengths[row.gid] for row in part.rows) for part in parts) == [[1, 9], [2, 8]]
        assert [part.round for part in parts] == [0, 0]
