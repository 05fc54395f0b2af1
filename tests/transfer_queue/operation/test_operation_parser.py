"""The command line: what it fills in, and which numbers it refuses before anything happens."""

from __future__ import annotations

import pytest

from transfer_queue.__main__ import COMMANDS
from transfer_queue.operation.parser import make_parser
from transfer_queue.operation.serve import ServeOptions

SERVE = ["serve", "queue.toml"]
SHARD = ["shard", "--controller", "tcp://127.0.0.1:1"]
STATUS = ["status", "--controller", "tcp://127.0.0.1:1"]
NEEDED = {"serve": SERVE, "controller": ["controller", "queue.toml"], "shard": [*SHARD, "--index", "0"], "status": STATUS}
NEEDED |= {"metrics": ["metrics", *STATUS[1:]], "keys": ["keys", "here"]}
NEEDED |= {name: [name, "here", *STATUS[1:]] for name in ("save", "load")}


def test_every_command_is_there_with_what_it_needs_and_no_more() -> None:
    assert NEEDED.keys() == COMMANDS.keys()
    for name, words in NEEDED.items():
        assert make_parser().parse_args(words).command == name
        with pytest.raises(SystemExit):
            make_parser().parse_args([name])


def test_by_default_everything_listens_on_loopback_and_nothing_is_left_open() -> None:
    serve = make_parser().parse_args(SERVE)
    assert (serve.bind, serve.shard_bind, serve.metrics, serve.key) == ("tcp://127.0.0.1:0", "tcp://127.0.0.1:0", None, None)
    assert all(hasattr(serve, name) for name in ServeOptions.__struct_fields__)
    assert make_parser().parse_args(NEEDED["metrics"]).bind == "0"
    assert make_parser().parse_args(STATUS).watch is None
    assert make_parser().parse_args([*STATUS, "--watch"]).watch == 2.0


@pytest.mark.parametrize(
    ("words", "kind", "numbers"),
    [
        ([*SERVE, "--shards"], "int", ["0", "-1", "257", "2.5", "many"]),
        ([*SERVE, "--drain-s"], "float", ["-1", "nan", "inf", "1e9", "soon"]),
        ([*SERVE, "--capacity-bytes"], "int", ["0", "-5", "1" * 30]),
        ([*SERVE, "--keep-bytes"], "int", ["-1", "1" * 30]),
        ([*SHARD, "--index"], "int", ["-1", "256", "first"]),
        ([*STATUS, "--timeout-s"], "float", ["0", "-1", "nan", "inf"]),
        ([*STATUS, "--watch"], "float", ["0", "-1", "nan", "inf", "3601"]),
    ],
)
def test_a_number_that_cannot_be_is_refused_with_its_key_and_its_bounds(
    words: list[str], kind: str, numbers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for number in numbers:
        with pytest.raises(SystemExit) as ended:
            make_parser().parse_args([*words[:-1], f"{words[-1]}={number}"])
        said = capsys.readouterr().err
        assert ended.value.code == 2
        assert f"argument {words[-1]}: " in said
        assert number in said
        assert "must be in [" in said or f"invalid {kind} value" in said


@pytest.mark.parametrize(("words", "number"), [([*SERVE, "--drain-s"], 0.0), ([*SERVE, "--keep-bytes"], 0), ([*SHARD, "--index"], 0)])
def test_zero_is_a_number(words: list[str], number: float) -> None:
    options = vars(make_parser().parse_args([*words, str(number)]))
    assert options[words[-1].removeprefix("--").replace("-", "_")] == number
