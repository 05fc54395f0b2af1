"""`asyncflow report`: what it prints and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asyncflow.cli.main import main
from tests.observe.report.run_files import whole_run


def test_it_writes_the_page_into_the_run_and_prints_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = whole_run(tmp_path)
    assert main(["report", str(run_dir)]) == 0
    page = Path(capsys.readouterr().out.strip())
    assert page == run_dir / "report.html"
    assert page.read_text().startswith("<!doctype html>")
    assert not list(run_dir.glob(".*"))


def test_page_and_trace_go_where_they_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir, page, trace = whole_run(tmp_path), tmp_path / "page.html", tmp_path / "trace.json"
    assert main(["report", str(run_dir), "--out", str(page), "--trace", str(trace)]) == 0
    assert capsys.readouterr().out.split() == [str(page), str(trace)]
    assert json.loads(trace.read_text())["traceEvents"]
    assert not (run_dir / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "there is no such directory"),
        (["EMPTY"], "it holds none of"),
        (["RUN", "RUN", "RUN"], "one run, or two"),
        (["RUN", "--out", "EMPTY/no/page.html"], "it cannot be written"),
        (["RUN", "--trace", "EMPTY"], "it cannot be written"),
    ],
)
def test_a_mistake_gets_one_message_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    run_dir, empty = whole_run(tmp_path), tmp_path / "empty"
    empty.mkdir()
    assert main(["report", *(word.replace("RUN", str(run_dir)).replace("EMPTY", str(empty)) for word in arguments)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("asyncflow: ")
    assert words in said
    assert "Traceback" not in said
    assert list(empty.iterdir()) == []
