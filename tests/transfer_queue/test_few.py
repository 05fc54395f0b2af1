"""A handful of rows is read without arrays, and comes back as the ordinary way gives it, whatever it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from ahead_writers import reserved
from queue_processes import refs
from wired import topic

from transfer_queue import few, transfer
from transfer_queue import messages as m
from transfer_queue.client import QueueClient
from transfer_queue.columns import Jagged
from transfer_queue.errors import Gone
from transfer_queue.local import LocalQueue
from transfer_queue.memory.glimpse import FEW
from transfer_queue.shard import messages as sm

KINDS: dict[str, m.Column] = {
    column.name: column
    for column in (
        m.Column("ids", "int32", "per_token", "rollout"),
        m.Column("hidden", "bfloat16", "per_token", "rollout", shape=(3,)),
        m.Column("logits", "float32", "scalar", "rollout", shape=(7,)),
        m.Column("flag", "bool", "scalar", "rollout"),
        m.Column("wave", "complex128", "scalar", "rollout"),
        m.Column("nothing", "int64", "scalar", "rollout", shape=(0,)),
        m.Column("answer", "uint8", "text", "rollout"),
        m.Column("calls", "uint8", "object", "rollout"),
        m.Column("image", "uint8", "blob", "rollout"),
    )
}
SPEC = topic(*KINDS.values())


@pytest.fixture(scope="module")
def client() -> Iterator[QueueClient]:
    with LocalQueue([msgspec.structs.replace(SPEC, name="policy")], shards=2) as queue, queue.client("reader") as client:
        reserved(client, lambda: client.discard(client.write([0], {"flag": np.ones(1, dtype=bool)})["flag"]))
        yield client


def made(name: str, rows: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 5, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    match name:
        case "ids":
            return Jagged(rng.integers(0, 1 << 30, int(offsets[-1]), dtype="int32"), offsets)
        case "hidden":
            return Jagged(rng.integers(0, 1 << 16, (int(offsets[-1]), 3), dtype="uint16"), offsets, "bfloat16")
        case "logits":
            return np.where(rng.random((rows, 7)) < 0.2, np.nan, rng.random((rows, 7))).astype("float32")
        case "flag":
            return rng.random(rows) < 0.5
        case "wave":
            return rng.random(rows) + 1j * rng.random(rows)
        case "nothing":
            return np.zeros((rows, 0), dtype="int64")
        case "answer":
            return [f"ja ✓ {row}"[: int(length)] for row, length in enumerate(lengths)]
        case "calls":
            return [{"row": row, "of": [None, 0.5]} for row in range(rows)]
    return [rng.bytes(int(length) * 9) for length in lengths]


def plain(column: Any) -> tuple[Any, ...]:
    """Everything that a reader can tell of a column."""
    if isinstance(column, Jagged):
        return "runs", column.dtype, *plain(column.values), *plain(column.offsets)
    if isinstance(column, np.ndarray):
        return type(column).__name__, str(column.dtype), column.shape, column.tobytes()
    return type(column).__name__, column


def answered(client: QueueClient) -> None:
    """After what it freed itself a client asks, until it was answered."""
    pieces = [client.write([0], {"flag": np.ones(1, dtype=bool)})["flag"][0] for _ in client.shards]
    client.read(refs(pieces), ["flag"], SPEC)
    assert not any(peer.freed for peer in client._peers.values())


@pytest.mark.parametrize("rows", [1, 2, FEW])
@pytest.mark.parametrize("name", KINDS)
def test_a_few_rows_come_as_many_would(client, monkeypatch, name, rows):
    slices = client.write(range(rows), {name: made(name, rows, seed=rows)}, SPEC)[name]
    order = np.random.default_rng(rows).permutation(rows)
    asked = refs([slices[at] for at in order])
    with monkeypatch.context() as patch:
        patch.setattr(transfer, "read_few", lambda *_: None)
        ordinary = client.read(asked, [name], SPEC)[name]
    answered(client)
    monkeypatch.setattr(transfer, "fetch", lambda *_: pytest.fail("asked the ordinary way"))
    assert plain(client.read(asked, [name], SPEC)[name]) == plain(ordinary)
    client.discard(slices)


def test_a_row_of_two_columns_in_two_shards_is_read_at_once(client, monkeypatch):
    names, places = ["ids", "answer"], []
    while len({piece.shard for piece in places}) < 2:
        places = [client.write([0], {name: made(name, 1, 3)}, SPEC)[name][0] for name in names]
    answered(client)
    row = [m.RowRef(gid=0, row=0, oldest_version=0, newest_version=0, columns=list(places))]
    monkeypatch.setattr(transfer, "fetch", lambda *_: pytest.fail("asked the ordinary way"))
    got = client.read(row, names, SPEC)
    assert {name: plain(column) for name, column in got.items()} == {
        name: plain(client.read(refs([piece]), [name], SPEC)[name]) for name, piece in zip(names, places, strict=True)
    }


def test_more_rows_or_bytes_than_few_go_the_ordinary_way(client, monkeypatch):
    monkeypatch.setattr(few, "MOST_BYTES", 1000)
    for rows, width in ((FEW + 1, 1), (1, 1001)):
        columns = {"image": [bytes([row] * width) for row in range(rows)]}
        slices = client.write(range(rows), columns, SPEC)["image"]
        places = {"image": m.places(m.packed_places(slices))}
        assert few.read_few(places, SPEC, client._peers) is None
        assert client.read(refs(slices), ["image"], SPEC)["image"] == columns["image"]
        client.discard(slices)


@pytest.mark.parametrize("cut", [(0, 3), (4, 0), (0, 1 << 40), (-4, 0)])
def test_what_is_wrong_with_a_place_is_left_to_the_ordinary_way(client, cut):
    piece = client.write([0], {"logits": made("logits", 1, 1)}, SPEC)["logits"][0]
    start, stop = cut
    wrong = m.Slice(piece.shard, piece.block, piece.start + start, (piece.start + stop) if stop else piece.stop)
    assert few.read_few({"logits": m.places(m.packed_places([wrong]))}, SPEC, client._peers) is None
    client.discard([piece])


@pytest.mark.parametrize("name", ["answer", "calls"])
def test_bytes_that_are_anothers_by_now_are_not_looked_into(client, monkeypatch, name):
    (piece,) = client.write([0], {name: made(name, 1, 7)}, SPEC)[name]
    answered(client)
    copied = few._copied

    def late(pieces: list[memoryview]) -> bytearray:
        client._peer(piece.shard).link.post(sm.Free(blocks=[piece.block]))  # as another member's word, of which we know nothing
        client._peer(piece.shard).ask(sm.ShardStatus()).result(5.0)
        return bytearray(b"\xff" * len(copied(pieces)))

    monkeypatch.setattr(few, "_copied", late)
    with pytest.raises(Gone):
        client.read(refs([piece]), [name], SPEC)


def test_an_absent_value_is_left_to_the_ordinary_way(client):
    spec = topic(msgspec.structs.replace(KINDS["flag"], optional=True))
    piece = client.write([0], {"flag": np.ones(1, dtype=bool)})["flag"][0]
    got = client.read(refs([piece, None]), ["flag"], spec)["flag"]
    assert isinstance(got, np.ma.MaskedArray)
    assert got.mask.tolist() == [False, True]
    client.discard([piece])
