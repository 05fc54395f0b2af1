"""The picture in terminals of several kinds: what is on it, that it fits, that it never flickers, and what stays when the run is over."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from asyncflow.observe.live.canvas import Canvas
from asyncflow.observe.live.picture import picture
from asyncflow.observe.live.view import RunView
from tests.observe.live.run_files import append, died, run_config, step, typical
from tests.observe.live.screen import Terminal


def drawn(folder: Path, width: int, height: int = 40, *overrides: str, **options: object) -> Terminal:
    """The screen of a view that was opened on a typical run and closed again."""
    terminal = Terminal(width, height, encoding=str(options.pop("encoding", "utf-8")))
    config = run_config(folder, *overrides)
    typical(config.run_dir)
    with RunView(config, console=terminal.console(**options)) as view:
        view.say("registered: everybody")
    return terminal


@pytest.mark.parametrize("width", [140, 80, 60])
def test_everything_a_person_follows_is_on_the_screen(tmp_path: Path, width: int) -> None:
    text = "\n".join(drawn(tmp_path, width).rows)
    for said in (
        "registered: everybody",
        "quick · staleness ≤ 2 (wait)",
        "elapsed · 11 s left",
        "version    109/120 ━",
        "91%",
        "reward     0.55  ▁",
        "0.910 (version 100), first 0.256 (0)  ▁█",
        "mean 1.27  max 2 of 2",
        "10.6k trained tokens/s, 2124 a device",
        "1.00 s a step",
        "64 of 96 permits used · admitted 1",
        "generating 31 · complete 0",
        "leased 32",
        "trained 3488 · dropped 3 (stale 3)",
        "rows ready (leased): actor_forward 8 (16)",
        "train 120 (256)",
    ):
        assert said in text, f"{said!r} is missing in\n{text}"
    for role in ("source", "rollout", "scorer", "actor_forward", "ref_forward", "trainer", "publisher"):
        assert re.search(rf"^{role}-0 +computes.* 70% +20% +10% +{1 if role == 'rollout' else 0}$", text, re.MULTILINE), text
    assert ("██████████████▒▒····" in text) == (width >= 100)


@pytest.mark.parametrize("width", [140, 80, 60])
def test_no_line_is_wider_than_the_terminal_and_nothing_is_broken_inside_a_part(tmp_path: Path, width: int) -> None:
    terminal = drawn(tmp_path, width)
    picture = terminal.rows[1:]
    assert all(len(row) <= width for row in picture)
    assert [row.split()[0] for row in picture if row and row[0] != " "][-8:] == [
        "worker", "source-0", "rollout-0", "scorer-0", "actor_forward-0", "ref_forward-0", "trainer-0", "publisher-0",
    ]  # fmt: skip


def test_a_worker_that_also_writes_says_both(tmp_path: Path) -> None:
    assert any(row.startswith("rollout-0") and "computes + writes rows" in row for row in drawn(tmp_path, 140).rows)


def test_the_picture_is_never_gone_between_two_writes(tmp_path: Path) -> None:
    """Frames and lines come while a watcher looks at the screen after each single write."""
    seen: list[list[str]] = []
    terminal = Terminal(100, 40, seen.append)
    config = run_config(tmp_path)
    typical(config.run_dir)
    with RunView(config, console=terminal.console()) as view:
        for number in range(6):
            before = len(seen)
            append(config.run_dir, step(110 + number))
            view.say(f"line {number}")
            while len(seen) < before + 1:
                view._thread.join(0.02)
    first = next(number for number, rows in enumerate(seen) if any("version" in row for row in rows))
    for rows in seen[first:]:
        assert any(row.startswith("quick ·") for row in rows), rows
        assert any(row.startswith("publisher-0") for row in rows), rows
    assert terminal.rows[:6] == [f"line {number}" for number in range(6)]
    assert "115/120" in "\n".join(terminal.rows)


def test_a_window_that_was_made_narrower_holds_one_picture(tmp_path: Path) -> None:
    """What a terminal does to long lines then, folding them, it does here because the console believes it to be wider than it is."""
    terminal = Terminal(70, 60)
    config = run_config(tmp_path)
    typical(config.run_dir)
    console = terminal.console(width=120)
    view = RunView(config, console=console)
    with Canvas(console) as canvas:
        console.print("above")
        canvas.show(picture(view.snapshot(), canvas.room, 60))
        console.width = 70
        canvas.show(picture(view.snapshot(), canvas.room, 60))
    rows = terminal.rows
    assert rows[0] == "above"
    assert [row for row in rows if row.startswith("quick ·")] == [rows[1]]
    assert sum(row.startswith("trainer-0") for row in rows) == 1


@pytest.mark.parametrize("width", [140, 80, 60])
def test_ctrl_c_that_the_terminal_echoes_does_not_move_the_picture(tmp_path: Path, width: int) -> None:
    terminal = Terminal(width, 40)
    config = run_config(tmp_path)
    typical(config.run_dir)
    console = terminal.console()
    view = RunView(config, console=console)
    with Canvas(console) as canvas:
        canvas.show(picture(view.snapshot(), canvas.room, 40))
        terminal.screen_feed("^C^C")
        console.print("stopping")
        canvas.show(picture(view.snapshot(), canvas.room, 40))
    assert terminal.rows[0] == "stopping"
    assert sum(row.startswith("quick ·") for row in terminal.rows) == 1
    assert "^C" not in "\n".join(terminal.rows)


def test_no_color_means_no_colour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coloured = re.compile(r"\x1b\[[\d;]*(3[0-7]|9[0-7]|4[0-7]|38|48)[\d;]*m")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert coloured.search(drawn(tmp_path / "a", 140, color_system="standard").text)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not coloured.search(drawn(tmp_path / "b", 140, color_system="standard").text)


def test_a_terminal_without_utf8_gets_a_picture_too(tmp_path: Path) -> None:
    text = "\n".join(drawn(tmp_path, 140, encoding="ascii").rows)
    assert "quick | staleness <= 2 (wait)" in text
    assert "##############==...." in text


def test_many_workers_are_shown_as_roles_where_there_is_no_room(tmp_path: Path) -> None:
    terminal = drawn(tmp_path, 140, 24, "resources.rollout.workers=30")
    rows = [row for row in terminal.rows if row.startswith("rollout")]
    assert len(rows) == 1
    assert rows[0].startswith("rollout ×30")
    assert "29 starts, 1 computes + writes rows" in rows[0]
    assert any(row.startswith("publisher-0") for row in terminal.rows)
    assert len(terminal.rows) <= 24


def test_what_is_wrong_stands_out(tmp_path: Path) -> None:
    terminal = Terminal(140, 40)
    config = run_config(tmp_path)
    typical(config.run_dir)
    append(config.run_dir, died("trainer", "no message for 10 s"), step(110, staleness_max=3.0))
    (config.run_dir / "metrics.jsonl").open("ab").write(b"{}\n")
    with RunView(config, console=terminal.console(color_system="standard")):
        pass
    text = "\n".join(terminal.rows)
    assert re.search("^trainer-0 +is gone: no message for 10 s", text, re.MULTILINE)
    assert "\x1b[1;31mmax 3\x1b[0m" in terminal.text  # beyond the bound
    assert "1 lines of the run's files could not be read" in text


def test_the_last_state_stays_and_what_follows_comes_below(tmp_path: Path) -> None:
    terminal = Terminal(100, 40)
    config = run_config(tmp_path)
    typical(config.run_dir, until=120)
    console = terminal.console()
    with RunView(config, console=console) as view:
        view.end("completed")
    console.print("exit reason    completed")
    rows = terminal.rows
    assert rows[-1] == "exit reason    completed"
    assert any("120/120" in row for row in rows)
    assert "completed · 2:00 elapsed" in rows[0]
    assert not terminal.screen.cursor.hidden


def test_a_reason_that_is_long_is_left_to_the_summary(tmp_path: Path) -> None:
    terminal = Terminal(100, 40)
    config = run_config(tmp_path)
    typical(config.run_dir)
    with RunView(config, console=terminal.console()) as view:
        view.end("rollout-0 died: killed by SIGKILL, more than limits.restarts = 2 times in 60 s")
    assert terminal.rows[0].startswith("quick · staleness ≤ 2 (wait)")
    assert terminal.rows[0].endswith("failed · 1:49 elapsed")


def test_a_run_that_has_written_nothing_yet_shows_its_workers_starting(tmp_path: Path) -> None:
    terminal = Terminal(100, 40)
    with RunView(run_config(tmp_path, "staleness=null"), console=terminal.console()):
        pass
    text = "\n".join(terminal.rows)
    assert re.search("no staleness bound +starting", text)
    assert "0/120" in text
    assert re.search("^rollout-0 +starts +[?] +[?] +[?] +0$", text, re.MULTILINE)


def test_staleness_0_and_reward_0_are_values(tmp_path: Path) -> None:
    terminal = Terminal(100, 40)
    config = run_config(tmp_path, "staleness=0")
    append(config.run_dir, step(1, reward_mean=0.0, staleness_mean=0.0, staleness_max=0.0), step(2, reward_mean=None, staleness_mean=None))
    with RunView(config, console=terminal.console()):
        pass
    text = "\n".join(terminal.rows)
    assert "staleness ≤ 0 (wait)" in text
    assert "reward     0.00" in text
    assert "mean" not in text  # the newest step did not measure it


def test_the_view_of_a_run_without_a_terminal_is_lines(tmp_path: Path) -> None:
    terminal = Terminal(100, 40)
    config = run_config(tmp_path, "observe.view=lines")
    typical(config.run_dir, until=120)
    with RunView(config, console=terminal.console()) as view:
        view.say("controller at tcp://127.0.0.1:1")
    assert sorted(terminal.rows) == [
        "controller at tcp://127.0.0.1:1",
        "version 120/120 at 120.0 s: reward 0.60 staleness 1.27 max 2.00 busy rollout 60% trainer 60%",
    ]
    assert "\x1b" not in terminal.text
