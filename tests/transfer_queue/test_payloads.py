"""Any payload through a real queue: put by a source and a rollout, taken and read by a trainer; and what breaks the schema moves no byte."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from wired import column as wired_column
from wired import over_the_wire, received, topic

from transfer_queue import messages as m
from transfer_queue.client import QueueClient
from transfer_queue.codec import from_torch, pack, to_torch
from transfer_queue.columns import Jagged
from transfer_queue.controller.blocks import places_of
from transfer_queue.controller.errors import RequestError
from transfer_queue.controller.schema import Schema
from transfer_queue.local import LocalQueue

GIDS, ROWS = range(5), 3


def column(name: str, dtype: str, kind: m.Kind, producer: str = "rollout", **more: Any) -> m.Column:
    return m.Column(name=name, dtype=dtype, kind=kind, producer=producer, **more)


COLUMNS = (
    column("chat", "uint8", "object", "source", shared=True),
    column("title", "uint8", "text", "source", shared=True),
    column("hidden", "bfloat16", "per_token", shape=(4,)),
    column("ids", "int32", "per_token"),
    column("logits", "float32", "scalar", shape=(7,)),
    column("scaled", "float8_e4m3fn", "scalar", shape=(2, 2)),
    column("flag", "bool", "scalar"),
    column("wave", "complex64", "scalar"),
    column("nothing", "int64", "scalar", shape=(0,)),
    column("answer", "uint8", "text"),
    column("calls", "uint8", "object"),
    column("image", "uint8", "blob"),
    column("verdict", "float64", "scalar", optional=True, shape=(2,)),
    column("remark", "uint8", "text", optional=True),
)
OWN = [each.name for each in COLUMNS if not each.shared and not each.optional]


@pytest.fixture(scope="module")
def running() -> Iterator[LocalQueue]:
    with LocalQueue([msgspec.structs.replace(topic(*COLUMNS), rows_per_group=ROWS)], shards=2) as queue:
        yield queue


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    """A value a row of every column, for 5 groups of 3 rows."""
    rows = len(GIDS) * ROWS
    random = np.random.default_rng(4)
    lengths = random.integers(0, 9, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    patterns = torch.from_numpy(random.integers(0, 1 << 16, (int(offsets[-1]), 4), dtype="uint16")).view(torch.bfloat16)
    return {
        "hidden": from_torch(patterns, torch.from_numpy(offsets)),
        "ids": Jagged(random.integers(0, 1 << 17, int(offsets[-1]), dtype="int32"), offsets),
        "logits": torch.arange(7.0 * rows).view(7, rows).t().requires_grad_(),
        "scaled": torch.from_numpy(random.integers(0, 256, (rows, 2, 2), dtype="uint8")).view(torch.float8_e4m3fn),
        "flag": torch.arange(rows) % 2 == 0,
        "wave": torch.view_as_complex(torch.arange(2.0 * rows).view(rows, 2)).conj(),
        "nothing": np.zeros((rows, 0), dtype="int64"),
        "answer": [f"Antwort {row} ✓"[: 3 * row] for row in range(rows)],
        "calls": [{"tool": ("search", row), "args": [row / 2, None, b"\x00"], "seen": np.arange(row)} for row in range(rows)],
        "image": [random.bytes(int(size)) for size in random.integers(0, 3000, rows)],
    }


def trained(queue: LocalQueue, made: dict[str, Any]) -> tuple[QueueClient, m.OkTaken]:
    """Put everything, and take it as the trainer does."""
    with queue.client("source", "source") as source:
        chats = [[{"role": "user", "content": f"question {gid}"}] for gid in GIDS]
        source.put_prompts("policy", list(GIDS), {"chat": chats, "title": [f"title {gid}" for gid in GIDS]}, cursor=GIDS.stop, wait_s=5.0)
    with queue.client("rollout", "rollout") as rollout:
        leases = rollout.pull("policy", loaded=0, limit=len(GIDS), wait_s=5.0).result(10.0).groups
        assert rollout.read_shared(leases, ["chat"], rollout.topic("policy"))["chat"][0] == [{"role": "user", "content": "question 0"}]
        order = [(row, lease) for row in range(ROWS) for lease in leases]  # groups interleaved: rows are sorted on the way
        puts = [m.RowPut(gid=lease.gid, fence=lease.fence, row=row, columns={}, tokens=1, oldest_version=0, newest_version=0) for row, lease in order]
        places = np.array([lease.gid * ROWS + row for row, lease in order])
        columns = {name: chosen(made[name], places) for name in OWN}
        assert not rollout.put_rows("policy", puts, dict.fromkeys(GIDS, ROWS), columns).closed
    trainer = queue.client("trainer", "trainer")
    return trainer, trainer.take("policy", "trainer", limit=1, step=0, wait_s=5.0).result(10.0)


def chosen(values: Any, order: np.ndarray) -> Any:
    if isinstance(values, Jagged):
        index = np.concatenate([np.arange(values.offsets[row], values.offsets[row + 1]) for row in order])
        return Jagged(values.values[index], np.concatenate([[0], np.cumsum(values.lengths[order])]), values.dtype)
    return [values[row] for row in order] if isinstance(values, list) else values[order]


def test_every_kind_of_column_goes_through_a_queue_and_comes_back_as_it_was_put(running, made):
    trainer, taken = trained(running, made)
    with trainer:
        assert [(ref.gid, ref.row) for ref in taken.rows] == [(taken.rows[0].gid, row) for row in range(ROWS)]
        gid = taken.rows[0].gid
        here = np.arange(gid * ROWS, (gid + 1) * ROWS)
        names = [each.name for each in COLUMNS]
        got = trainer.read(taken.rows, names, trainer.topic("policy"))
    for name in ("hidden", "ids"):
        expected = chosen(made[name], here)
        assert (got[name].dtype, got[name].values.shape) == (expected.dtype, expected.values.shape)
        assert got[name].values.tobytes() == expected.values.tobytes()
        assert got[name].lengths.tolist() == expected.lengths.tolist()
    assert to_torch(got["hidden"])[0].dtype is torch.bfloat16
    for name in ("logits", "scaled", "flag", "wave"):
        expected = made[name].detach()[here].contiguous()
        back = to_torch(got[name], str(expected.dtype).removeprefix("torch."))
        assert (back.dtype, back.shape) == (expected.dtype, expected.shape)
        assert back.resolve_conj().view(torch.uint8).tolist() == expected.resolve_conj().view(torch.uint8).tolist()
    assert got["nothing"].shape == (ROWS, 0)
    assert got["answer"] == chosen(made["answer"], here)
    assert got["image"] == chosen(made["image"], here)
    assert [(call["tool"], call["args"], call["seen"].tolist()) for call in got["calls"]] == [
        (("search", int(row)), [row / 2, None, b"\x00"], list(range(row))) for row in here
    ]
    assert got["chat"] == [[{"role": "user", "content": f"question {gid}"}]] * ROWS
    assert got["title"] == [f"title {gid}"] * ROWS
    assert (got["verdict"].shape, got["verdict"].mask.all()) == ((ROWS, 2), True)
    assert got["remark"] == [None] * ROWS


@pytest.mark.parametrize(
    ("name", "values", "error", "message"),
    [
        ("ids", Jagged.of([[1]], "int64"), ValueError, r"is int32, got int64: bits travel unconverted.*values\.astype\('int32'\)"),
        ("ids", np.ones(1, dtype="int32"), ValueError, "is per_token, got scalar: pass a Jagged"),
        ("flag", Jagged.of([[True]], "bool"), ValueError, r"is scalar, got per_token: pass an array or tensor \[rows, \*shape\]"),
        ("logits", np.ones((1, 6), dtype="float32"), ValueError, r"values of shape \[7\], got \[6\]"),
        ("logits", np.ones(1, dtype="float32"), ValueError, r"values of shape \[7\], got \[\]"),
        ("flag", np.ones((1, 1), dtype=bool), ValueError, r"values of shape \[\], got \[1\].*declare shape=\[1\]"),
        ("hidden", torch.ones(1, 2, 3, dtype=torch.bfloat16), ValueError, r"values of shape \[4\], got \[3\]"),
        ("hidden", torch.ones(1, 2, 4), ValueError, "is bfloat16, got float32"),
        ("hidden", torch.ones(2, 2, 4, dtype=torch.bfloat16), ValueError, "2 rows for 1 gids"),
        ("scaled", torch.ones(1, 2, 2).to(torch.float8_e5m2), ValueError, "is float8_e4m3fn, got float8_e5m2"),
        ("answer", [b"bytes"], TypeError, "is text, but row 0 is bytes"),
        ("answer", np.array(["text"]), TypeError, "text is kind 'text'"),
        ("image", ["text"], TypeError, "row 0 is str: rows of a blob must be bytes"),
        ("image", np.ones((1, 3), dtype="uint8"), ValueError, "is blob, got per_token: pass a list of bytes"),
        ("calls", [{1, 2}], TypeError, "row 0: a builtins.set"),
        ("calls", {"tool": 1}, TypeError, "builtins.dict: pass an ndarray"),
        ("flag", [True], TypeError, "row 0 is bool: .*pass an ndarray for scalars"),
        ("flags", np.ones(1, dtype=bool), ValueError, "'flags' is not in topic"),
    ],
)
def test_columns_that_break_the_schema_are_refused_before_a_byte_moves(running, name, values, error, message):
    with running.client("strict") as client:
        with pytest.raises(error, match=f"column '{name}.*{message}|column {message}"):
            client.write([0], {name: values}, client.topic("policy"))
        assert all(client.owner not in status.owners for status in client.shard_status().values())


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (wired_column("float33"), "dtype='float33' is no number"),
        (wired_column("qint8"), "dtype='qint8' does not travel"),
        (wired_column(">i4"), "dtype='>i4' is stored the other way round.*write 'int32'"),
        (wired_column("float32", "text"), "is text with dtype='float32'"),
        (wired_column("uint8", "object", (3,)), r"is object with .*shape=\[3\]"),
        (wired_column("float32", "per_token", (2, 0)), r"per_token with shape=\[2, 0\]: sizes are >= 1"),
        (wired_column("float32", "scalar", (-1,)), r"scalar with shape=\[-1\]: sizes are >= 0"),
        (wired_column("float32", "scalar", (1 << 20, 1 << 20)), "at most"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused_when_the_controller_starts(declared, message):
    with pytest.raises(ValueError, match=f"topic 'policy': column 'x'.*{message}"):
        Schema(topic(declared))


@pytest.mark.parametrize(
    ("declared", "good", "bad"),
    [
        (wired_column("float32", "scalar", (3,)), 12, (0, 4, 11, 13, 24)),
        (wired_column("bfloat16", "per_token", (4,)), 24, (4, 9)),
        (wired_column("int32", "per_token"), 0, (2,)),
        (wired_column("int32", "scalar", (0,)), 0, (4,)),
        (wired_column(kind="text"), 7, ()),
    ],
)
def test_the_controller_refuses_places_whose_bytes_are_no_values_of_the_column(declared, good, bad):
    schema = Schema(topic(declared))
    schema.check_places("row", {"x": places_of([m.Slice(0, 1, 64, 64 + good)])})
    for count in bad:
        with pytest.raises(RequestError, match=f"column 'x' is {declared.kind}.* holds {count} bytes"):
            schema.check_places("row", {"x": places_of([m.Slice(0, 1, 64, 64 + count)])})


def test_bits_under_the_name_of_their_storage_are_taken_as_the_bits_they_are():
    bits = np.array([0x3F80, 0x7FC1], dtype="uint16")
    assert to_torch(over_the_wire(bits, wired_column("bfloat16")), "bfloat16").view(torch.uint16).tolist() == bits.tolist()
    with pytest.raises(ValueError, match="is uint16, got bfloat16"):
        over_the_wire(torch.ones(2, dtype=torch.bfloat16), wired_column("uint16"))


def test_a_reader_with_another_schema_than_the_writer_is_told_so():
    packed = pack("x", np.zeros((2, 3), dtype="float32"), wired_column("float32", shape=(3,)))
    with pytest.raises(ValueError, match=r"column 'x' is scalar with values of 4 elements .*row 0 holds 3: written as another kind or shape"):
        received(packed, wired_column("float32", shape=(4,)))
