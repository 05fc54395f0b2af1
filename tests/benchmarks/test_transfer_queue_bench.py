"""The benchmark of the queue: how it compares, what it says where a peer is missing, and the whole of it in small."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from subprocess import run

import msgspec
import numpy as np
import pytest

from benchmarks.harness import Row
from benchmarks.queue_bench.asking import Asked, ProcessFailed, together_s
from benchmarks.queue_bench.limits import Gather, WarmMemory
from benchmarks.queue_bench.measure import Bench, against, alternate, at_most, guarded, peer_side, percentile, value_at_most
from benchmarks.queue_bench.payload import TOKEN_BYTES, Case, read_every_byte
from benchmarks.queue_bench.peers import Peer, PeerMissing, Peers, environment
from benchmarks.queue_bench.scope import quick

ROOT = Path(__file__).parents[2]
HANGS = """
import threading
from answering import answer
class Owner:
    def hang(self): threading.Event().wait(60)
    def echo(self, word): return {"word": word}
    def fail(self): raise ValueError("no such thing")
answer(Owner())
"""


def test_sides_take_turns_and_warm_up_turns_do_not_count() -> None:
    turns: list[str] = []
    seconds = iter([9.0, 9.0, 1.0, 30.0, 2.0])

    def ours() -> dict[str, float]:
        turns.append("ours")
        return {"put_s": next(seconds)}

    def theirs() -> dict[str, float]:
        turns.append("theirs")
        return {"put_s": 4.0} if len(turns) < 10 else {}  # fails in its last turn

    assert alternate(3, {"ours": ours, "theirs": theirs}, warmups=2) == {"ours put_s": 2.0}
    assert turns == ["ours", "theirs"] * 5


def test_a_peer_that_is_missing_leaves_the_value_and_claims_nothing() -> None:
    row = against("get", 100.0, "gets/s", None, "it is not here", at_least=20.0, note="1 client")
    assert (row.value, row.reference, row.ratio, row.met, row.note) == (100.0, None, None, None, "1 client; it is not here")
    assert against("get", 100.0, "gets/s", 5.0, "", at_least=20.0).met is True
    assert against("get", 99.0, "gets/s", 5.0, "", at_least=20.0).met is False


def test_goals_that_are_upper_bounds_are_missed_from_above() -> None:
    assert [at_most("x", value, "ms", 10.0, 1.2).met for value in (12.0, 12.1)] == [True, False]
    assert [value_at_most("x", value, "ms", 0.7).met for value in (0.7, 0.71)] == [True, False]
    assert percentile([3.0, 1.0, 2.0, 4.0], 0.5) == 3.0
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0


def test_jagged_rows_hold_as_many_bytes_as_dense_ones() -> None:
    for rows in (16, 17):
        dense, jagged = Case(rows, 1_000), Case(rows, 1_000, jagged=True)
        assert dense.lengths().sum() == jagged.lengths().sum() == rows * 1_000
        assert len(set(jagged.lengths().tolist())) > 5
        assert sum(values.nbytes for values in jagged.values().values()) == jagged.nbytes == rows * 1_000 * TOKEN_BYTES


def test_every_byte_is_read_whatever_the_length() -> None:
    array = np.zeros(1_003, dtype=np.uint8)
    for place in (0, 999, 1_000, 1_002):
        array[:] = 0
        array[place] = 1
        assert read_every_byte([array]) > 0
    assert read_every_byte([array]) == read_every_byte([array[:500], array[500:]])


def test_the_limits_move_the_bytes_that_they_are_given() -> None:
    columns = list(Case(16, 100).values().values())
    memory = WarmMemory([column.nbytes for column in columns])
    memory.copy_in(columns)
    assert memory.read() == read_every_byte(columns)
    gather = Gather(columns, pieces=5)
    gather.run()
    assert read_every_byte(gather.destination) == read_every_byte(columns)
    memory.close()
    gather.close()


def test_a_process_that_fails_ends_or_hangs_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    script = tmp_path / "owner.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT / 'benchmarks' / 'queue_bench')!r})\n{HANGS}")
    with Asked(script, python=sys.executable) as asked:
        assert asked.ask("echo", word="ö") == {"word": "ö"}
        with pytest.raises(ProcessFailed, match="ValueError: no such thing"):
            asked.ask("fail")
        with pytest.raises(ProcessFailed, match="ended"):
            asked.ask("echo", word="again")
    with Asked(script, python=sys.executable) as asked:
        with pytest.raises(ProcessFailed, match=r"no answer within 0\.2 s"):
            asked.ask("hang", timeout_s=0.2)
        asked.process.kill()
    assert together_s([{"begin": 1.0, "end": 3.0}, {"begin": 0.5, "end": 2.0}]) == 2.5


def test_a_peer_that_cannot_be_started_or_fails_on_the_way_says_why(tmp_path: Path) -> None:
    peer = Peer("nobody", [], tmp_path / "nobody.py")
    with Peers(tmp_path, wanted=False) as peers:
        bench = Bench(quick(), peers)
        assert peer_side(bench, peer, quick().cases[0].wire()) == {}
        assert peers.why(peer) == "nobody: not asked for (--no-peers)"
        with pytest.raises(PeerMissing, match="not asked for"):
            peers.get(peer)

    def fails() -> dict[str, float]:
        raise ProcessFailed("it ended with exit code 3\na traceback")

    with Peers(tmp_path) as peers:
        side = guarded(Bench(quick(), peers), peer, fails)
        assert (side(), side()) == ({}, {})
        assert peers.why(peer) == "nobody: it ended with exit code 3"


@pytest.mark.tools
def test_a_peer_that_cannot_be_installed_says_what_pip_said(tmp_path: Path) -> None:
    peer = Peer("nothing", [["--no-index", "--find-links", str(tmp_path), "asyncflow-nothing==1"]], tmp_path / "nothing.py")
    with pytest.raises(PeerMissing, match="asyncflow-nothing"):
        environment(peer, tmp_path)


@pytest.mark.tools
def test_the_quick_benchmark_measures_every_row_on_real_processes_and_claims_nothing(tmp_path: Path) -> None:
    file = tmp_path / "transfer_queue.json"
    command = [sys.executable, "benchmarks/transfer_queue.py", "--quick", "--no-peers", "--json", str(file)]
    done = run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    rows = msgspec.json.decode(msgspec.json.encode(msgspec.json.decode(file.read_bytes())["rows"]), type=list[Row])
    assert all(row.met is None for row in rows)
    beginnings = ("put 0.192 MB", "get 0.192 MB", "get and read", "put 2 ×", "get 8 rows of 4 puts", "put over TCP", "get over TCP", "memory of all")
    for beginning in beginnings:
        found = [row for row in rows if row.name.startswith(beginning)]
        assert found, beginning
        assert all(row.value is not None and row.value > 0 for row in found if "after deletion" not in row.name)
    own = [row for row in rows if "TransferQueue" not in row.name and "ray." not in row.name and row.ratio is not None]
    assert len(own) >= 15
    assert all(row.reference is not None and row.reference > 0 for row in own)
    missing = [row for row in rows if "TransferQueue" in row.name]
    assert missing
    assert all(row.ratio is None and "--no-peers" in row.note for row in missing)
