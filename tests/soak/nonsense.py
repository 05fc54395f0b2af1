"""Messages that no client of ours sends. They may end nothing but what their sender holds: who reaches a server could stop the run in order, too."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from transfer_queue import messages as m
from transfer_queue.wire import encode

sys.path[:0] = [str(Path(__file__).parents[1] / "transfer_queue" / part) for part in ("", "controller")]  # what the tests of both servers send

from controller_noise import WILD, mutate  # noqa: E402
from test_shard_server import malformed  # noqa: E402

__all__ = ["NOISE", "malformed", "to_controller"]

NOISE = "noise"  # the name under which nonsense is well formed


def to_controller(rng: Random, number: int, incarnation: int, topic: str) -> list[bytes]:
    """One message: noise, cut, flipped, nested beyond every decoder, of too many frames, or well formed with one value gone wild."""
    request = _request(rng, topic)
    changed = mutate(request, rng) if rng.random() < 0.5 else request
    who = {"member": NOISE, "incarnation": incarnation} if "member" in request.__struct_fields__ else {}
    payload = bytearray(encode(msgspec.structs.replace(changed, id=number, **who)))
    match rng.randrange(8):
        case 0:
            payload = bytearray(rng.randbytes(rng.randrange(200)))
        case 1:
            del payload[rng.randrange(len(payload)) :]
        case 2:
            payload[rng.randrange(len(payload))] ^= 1 << rng.randrange(8)
        case 3:
            payload = bytearray(b"\x82\xa2id\x05\xa1x" + b"\x91" * rng.randrange(2000) + b"\x01")
    extra = [rng.randbytes(8) for _ in range(rng.randrange(3))] if rng.random() < 0.1 else []
    return [bytes(payload), *extra]


def _request(rng: Random, topic: str) -> m.Request:
    """What a member may say. Nothing that ends the run or another member, or puts rows: what is refused is freed, whoever's it is."""
    who: dict[str, Any] = {"member": NOISE, "incarnation": 0}
    wait_s = rng.choice([0.0, 0.1])
    return rng.choice(
        [
            lambda: m.Watch(wait_s=wait_s, loaded={f"model-{topic}": 0}, **who),
            lambda: m.Roster(known=rng.choice(WILD[:-1]), wait_s=wait_s, **who),
            lambda: m.Demand(topic=topic, wait_s=wait_s, **who),
            lambda: m.Pull(topic=topic, loaded=0, limit=1, wait_s=wait_s, **who),
            lambda: m.Progress(topic=topic, items=[m.ProgressItem(rng.randrange(100), rng.randrange(100), 1, 0)], **who),
            lambda: m.PutRows(topic=topic, rows=m.PutBatch(), close={rng.randrange(100): 1}, **who),
            lambda: m.Put(topic=topic, token=1, groups=1, rows_per_group=2, columns={}, wait_s=wait_s, **who),
            lambda: m.Take(topic=topic, consumer=rng.choice(["grade", "train"]), limit=2, step=0, wait_s=wait_s, **who),
            lambda: m.WriteBack(topic=topic, consumer="grade", lease=rng.randrange(100), gids=b"", rows=b"", columns={"score": b""}, **who),
            lambda: m.Release(topic=topic, consumer="grade", lease=rng.randrange(100), **who),
            lambda: m.Renew(topic=topic, consumer="grade", lease=rng.randrange(100), within_s=rng.choice([-1.0, 0.0, 1e9, float("nan")]), **who),
            lambda: m.Report(kind=NOISE, data={"value": 1.0}, **who),
            lambda: m.Cancel(target=rng.randrange(1 << 20)),
            lambda: m.Status(waits=rng.random() < 0.1),
        ]
    )()
