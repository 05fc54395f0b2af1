"""What a shard does for a request depends on the request, not on what is stored."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from transfer_queue.shard import messages as m
from transfer_queue.shard.answers import Answers
from transfer_queue.shard.store import Store

ROUNDS, CYCLES = 7, 40
ME, OWNER = b"me", "w#0"
ROW = 8  # bytes


@contextmanager
def filled(blocks: int) -> Iterator[Answers]:
    """So many blocks of a row each, in writes of 1,000."""
    answers = Answers(Store(64 << 20))
    answers.answer(ME, m.Join(owner=OWNER, pid=os.getpid()), [])
    for _ in range(0, blocks, 1_000):
        _write(answers, 1_000)
    assert len(answers.store.blocks) == blocks
    try:
        yield answers
    finally:
        answers.close()


def _write(answers: Answers, rows: int) -> list[int]:
    reply = answers.answer(ME, m.Write(owner=OWNER, cuts=[list(range(0, (rows + 1) * ROW, ROW))]), [bytes(rows * ROW)])
    assert reply is not None
    assert isinstance(reply[0], m.Written)
    return list(range(reply[0].first, reply[0].first + rows))


def _cycle(answers: Answers) -> None:
    """Every request of a small batch once; what is stored stays as large as it was."""
    blocks = _write(answers, 4)
    ranges = m.Ranges(blocks=blocks, starts=list(range(0, 4 * ROW, ROW)), stops=list(range(ROW, 5 * ROW, ROW)))
    read = answers.answer(ME, m.Read(columns=[ranges]), [])
    assert read is not None
    assert isinstance(read[0], m.Found)
    del read
    held = answers.answer(ME, m.Hold(blocks=blocks), [])
    assert held is not None
    assert isinstance(held[0], m.Held)
    answers.answer(ME, m.Free(blocks=blocks), [])
    answers.answer(ME, m.Release(holds=[held[0].hold]), [])
    gone = answers.answer(ME, m.Hold(blocks=blocks), [])
    assert gone is not None
    assert isinstance(gone[0], m.NotFound)
    answers.answer(ME, m.ShardStatus(), [])
    answers.collect(0)


def _seconds(blocks: int) -> float:
    """The median cycle of the best round: a busy machine does not decide, nor the garbage collector, which walks all that is stored now and then."""
    with filled(blocks) as answers:
        rounds = np.zeros((ROUNDS, CYCLES))
        for turn in range(ROUNDS):
            for cycle in range(CYCLES):
                start = time.perf_counter()
                _cycle(answers)
                rounds[turn, cycle] = time.perf_counter() - start
        assert len(answers.store.blocks) == blocks
        return float(np.median(rounds, axis=1).min())


def test_requests_beside_200_000_blocks_cost_less_than_one_and_a_half_times_those_beside_1_000() -> None:
    few, many = _seconds(1_000), _seconds(200_000)
    print(f"a small batch through a shard: {few * 1e6:.0f} µs beside 1,000 blocks, {many * 1e6:.0f} µs beside 200,000")
    assert many < 1.5 * few
