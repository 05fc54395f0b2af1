"""The emulated engine keeps the contract of rollout engines, and tells the truth about versions."""

from __future__ import annotations

import math

import pytest

from asyncflow.contracts.rollout import Capacity, Chunk
from asyncflow.engines.emulated.rollout import STOP_TOKEN, EmulatedRolloutEngine
from tests.engines.emulated.emulation import SCALE, FakeTime, emulation, request, weights


def started(time: FakeTime) -> EmulatedRolloutEngine:
    engine = EmulatedRolloutEngine(emulation(), time.clock())
    engine.start()
    engine.load_weights(weights(0), [])
    return engine


def finish_all(engine: EmulatedRolloutEngine) -> list[Chunk]:
    chunks: list[Chunk] = []
    while engine.next_chunk_s() < math.inf:
        chunks += engine.chunks(wait_s=1e9)
    return chunks


def test_a_request_takes_its_prefill_and_its_steps_and_says_until_when() -> None:
    time = FakeTime()
    engine = started(time)
    engine.generate([request(0, 0)])
    assert engine.next_chunk_s() == pytest.approx((4 * 0.25 + 10 * 1.5) / SCALE)
    assert engine.chunks() == []
    (chunk,) = finish_all(engine)
    assert (len(chunk.token_ids), len(chunk.logprobs), chunk.finish) == (10, 10, "stop")
    assert chunk.token_ids[-1] == STOP_TOKEN
    assert STOP_TOKEN not in chunk.token_ids[:-1]
    assert engine.capacity().free_slots == 4


def test_tokens_carry_the_version_that_was_loaded_when_they_were_made() -> None:
    time = FakeTime()
    engine = started(time)
    engine.generate([request(0, 0)])
    time.now_s += (4 * 0.25 + 3 * 1.5) / SCALE  # three tokens
    engine.load_weights(weights(1), [])
    engine.load_weights(weights(2), [])  # nothing is made between the two
    told = engine.chunks()
    assert [(chunk.version, len(chunk.token_ids)) for chunk in told] == [(0, 3)], "before the first token of the new weights"
    engine.generate([request(0, 1, min_version=2)])
    first, second, last = sorted(told + finish_all(engine), key=lambda chunk: (chunk.id, chunk.version))
    assert [(chunk.version, len(chunk.token_ids), chunk.finish) for chunk in (first, second)] == [(0, 3, None), (2, 7, "stop")]
    assert (last.version, len(last.token_ids)) == (2, 10)


def test_a_load_holds_the_replica_for_its_pause_but_not_the_first_one() -> None:
    time = FakeTime()
    begin_s = time.now_s
    engine = started(time)
    assert time.now_s == begin_s
    engine.generate([request(0, 0)])
    before_s = engine.next_chunk_s()
    engine.load_weights(weights(1), [])
    assert time.now_s - begin_s == pytest.approx((1.0 + 6.0) / SCALE)  # prefill, then the pause
    assert engine.next_chunk_s() == pytest.approx(before_s - 1.0 / SCALE)


def test_more_requests_than_slots_wait_their_turn_and_each_ends_once() -> None:
    engine = started(FakeTime())
    engine.generate([request(gid, row) for gid in range(5) for row in range(2)])
    assert engine.capacity() == Capacity(slots=4, free_slots=0, running=1, queued=9), "one prefills, and the other three in slots wait for it"
    chunks = finish_all(engine)
    assert sorted(chunk.id for chunk in chunks) == sorted(request(gid, row).id for gid in range(5) for row in range(2))
    assert all(chunk.finish == "stop" for chunk in chunks)


def test_requests_queue_until_their_prefill_begins_and_the_engine_says_when_none_does_any_more() -> None:
    time = FakeTime()
    engine = started(time)
    begin_s = time.now_s
    engine.generate([request(0, row) for row in range(3)])
    seen = []
    while engine.capacity().queued:
        seen.append((engine.capacity().free_slots, engine.capacity().queued))
        assert engine.chunks(wait_s=1e9) == []
    assert seen == [(1, 2)], "one wake-up for all of them"
    assert engine.capacity() == Capacity(slots=4, free_slots=1, running=3, queued=0)
    assert (time.now_s - begin_s) * SCALE == pytest.approx(2 * 1.0)


def test_aborted_requests_end_as_aborted_and_unknown_ones_are_ignored() -> None:
    engine = started(FakeTime())
    engine.generate([request(gid, row) for gid in range(3) for row in range(2)])
    engine.abort([request(0, 0).id, request(2, 1).id, "7/7/0/0"])
    assert engine.next_chunk_s() == 0.0
    chunks = finish_all(engine)
    assert {chunk.id for chunk in chunks if chunk.finish == "aborted"} == {request(0, 0).id, request(2, 1).id}
    assert len(chunks) == 6


def test_what_breaks_the_contract_is_refused_and_nothing_is_queued() -> None:
    engine = EmulatedRolloutEngine(emulation(), FakeTime().clock())
    with pytest.raises(ValueError, match="loaded is None"):
        engine.generate([request(0, 0)])
    engine.load_weights(weights(1), [])
    with pytest.raises(ValueError, match="version 2"):
        engine.generate([request(0, 0), request(0, 1, min_version=2)])
    assert engine.capacity().running == 0
    engine.generate([request(0, 0)])
    with pytest.raises(ValueError, match="is known already"):
        engine.generate([request(0, 0)])
    with pytest.raises(ValueError, match="pause_mode"):
        engine.pause("abort")


def test_what_decoding_cost_is_told_in_this_machines_time() -> None:
    engine = started(FakeTime())
    told: list[tuple[str, float, float]] = []
    engine.meter(lambda work, size, seconds: told.append((work, size, seconds)))
    engine.generate([request(0, 0), request(0, 1)])
    assert told == []
    finish_all(engine)
    assert told == [("prefill", 4, 0.1), ("prefill", 4, 0.1), ("decode", 2, pytest.approx(2.0 / SCALE)), ("decode", 1, pytest.approx(1.5 / SCALE))]
