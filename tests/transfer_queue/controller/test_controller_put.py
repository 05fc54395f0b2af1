"""Whole groups in one request: numbered, admitted, stored and closed at once, or not at all."""

from __future__ import annotations

import time
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from controller_bench import spec
from controller_desk import Desk, Who, gids, plain
from controller_messages import blocks, put, write_back
from controller_noise import mutate
from hypothesis import given, settings
from hypothesis import strategies as st

from transfer_queue import messages as m
from transfer_queue.controller.receipts import KEPT
from transfer_queue.wire import decode_request, encode


def stream(**more: Any) -> m.TopicSpec:
    """tokens, with a prompt that groups may share and need not have."""
    topic = plain(**more)
    prompt = msgspec.structs.replace(topic.columns[0], optional=True)
    return msgspec.structs.replace(topic, columns=(prompt, *topic.columns[1:]))


class Hub(Desk):
    """Counts the tokens of puts up."""

    def __init__(self, topic: m.TopicSpec, **config: Any) -> None:
        super().__init__(topic, **config)
        self.puts = 0

    def message(self, who: Who, groups: int, **more: Any) -> tuple[m.Put, list[int]]:
        """The request, and the blocks that it names."""
        columns = {"tokens": [self.slice() for _ in range(groups * more.get("each", 1))]}
        self.puts += 1
        return put(groups, columns, **{"token": self.puts, "topic": "t", "wait_s": 0.0, **who.fields, **more}), blocks(columns)

    def give(self, who: Who, groups: int, **more: Any) -> list[int]:
        return self.ask(who.connection, self.message(who, groups, **more)[0], m.OkStored).groups


def test_a_put_is_one_request_from_which_on_its_rows_can_be_taken_and_trained() -> None:
    hub = Hub(stream(batch=3, staleness=0))
    maker, trainer = hub.join("maker"), hub.join("trainer", "trainer")
    request, named = hub.message(maker, 3)
    assert hub.ask(maker.connection, request, m.OkStored).groups == [0, 1, 2]
    assert hub.ledger() == {"complete": 3}
    taken = hub.take(trainer, step=0)
    assert [(row.gid, row.row, row.oldest_version, row.newest_version) for row in taken.rows] == [(gid, 0, 0, 0) for gid in range(3)]
    assert [row.columns[0] for row in taken.rows] == [None] * 3, "the optional shared column is missing"
    assert [row.columns[1].block for row in taken.rows if row.columns[1]] == named
    assert hub.freed() == []
    hub.ask(trainer.connection, hub.commit(trainer, 0, [taken.lease]), m.OkCommitted)
    assert sorted(hub.freed()) == named
    assert hub.ledger() == {"trained": 3}
    assert hub.topic.stored_rows == len(hub.topic.groups) == 0
    assert hub.core.live_blocks(0) == []
    assert hub.give(maker, 1) == [3], "numbers are never used again"
    assert hub.topic.groups[3].version == 1, "made by the committed weights"


def test_groups_of_several_rows_share_what_belongs_to_the_group() -> None:
    hub = Hub(stream(batch=2, staleness=0))
    maker, trainer = hub.join("maker"), hub.join("trainer", "trainer")
    columns = {"tokens": [hub.slice() for _ in range(6)], "prompt": [hub.slice() for _ in range(2)]}
    request = put(2, columns, each=3, topic="t", **maker.fields)
    assert hub.ask(maker.connection, request, m.OkStored).groups == [0, 1]
    taken = hub.take(trainer, step=0)
    assert taken.rows.keys() == [(gid, row) for gid in range(2) for row in range(3)]
    assert [row.columns for row in taken.rows] == [[columns["prompt"][at // 3], columns["tokens"][at]] for at in range(6)]
    hub.ask(trainer.connection, hub.commit(trainer, 0, [taken.lease]), m.OkCommitted)
    assert sorted(hub.freed()) == blocks(columns)


def test_a_put_waits_for_room_for_all_its_groups_and_an_empty_reply_stored_nothing() -> None:
    hub = Hub(stream(batch=2, staleness=1))
    maker, trainer = hub.join("maker"), hub.join("trainer", "trainer")
    hub.give(maker, 3)
    assert hub.give(maker, 2) == [], "one permit is left, and it waits 0 s"
    request, _ = hub.message(maker, 2, wait_s=5.0)
    parked, late = hub.send(maker.connection, request), hub.send(maker.connection, hub.message(maker, 4, wait_s=1.0)[0])
    assert parked not in hub.replies
    hub.wait(1.0)
    assert hub.replies[late] == m.OkStored(id=late)
    taken = hub.take(trainer, step=0)
    hub.ask(trainer.connection, hub.commit(trainer, 0, [taken.lease]), m.OkCommitted)
    assert hub.replies[parked] == m.OkStored(id=parked, gids=m.packed([3, 4]))
    assert hub.ledger() == {"complete": 3, "trained": 2}


def test_bytes_bound_a_put_as_permits_do_and_what_could_never_fit_is_refused() -> None:
    hub = Hub(stream(batch=2, staleness=None, budget_bytes=40, group_bytes=10))
    maker = hub.join("maker")
    assert hub.give(maker, 4) == [0, 1, 2, 3]
    assert hub.give(maker, 1) == []
    request, named = hub.message(maker, 5)
    assert "budget_bytes=40" in hub.refuse(maker.connection, request)
    assert sorted(hub.freed()) == named


def test_a_repeat_under_the_same_token_stores_nothing_and_gets_the_same_reply() -> None:
    hub = Hub(stream(batch=4, staleness=0))
    maker = hub.join("maker")
    request, _ = hub.message(maker, 2)
    first = hub.ask(maker.connection, request, m.OkStored)
    again = hub.ask(maker.connection, request, m.OkStored)
    assert again.groups == first.groups == [0, 1]
    assert hub.freed() == [], "the same slices: they are stored"
    stored_anew, named = hub.message(maker, 2, token=request.token)
    assert hub.ask(maker.connection, stored_anew, m.OkStored).groups == [0, 1]
    assert hub.freed() == named
    assert hub.ledger() == {"complete": 2}


def test_of_a_parked_put_and_its_repeat_only_one_is_stored() -> None:
    hub = Hub(stream(batch=1, staleness=0))
    maker, trainer = hub.join("maker"), hub.join("trainer", "trainer")
    hub.give(maker, 1)
    request, _ = hub.message(maker, 1, wait_s=50.0)
    one, two = hub.send(maker.connection, request), hub.send(maker.connection, request)
    taken = hub.take(trainer, step=0)
    hub.ask(trainer.connection, hub.commit(trainer, 0, [taken.lease]), m.OkCommitted)
    assert [hub.replies[number] for number in (one, two)] == [m.OkStored(id=number, gids=m.packed([1])) for number in (one, two)]
    assert hub.ledger() == {"complete": 1, "trained": 1}


def test_replies_that_are_kept_for_repeats_are_bounded_and_go_with_the_member(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(stream(batch=200, staleness=0))
    maker = hub.join("maker")
    for _ in range(KEPT + 5):
        hub.give(maker, 1)
    kept = hub.topic.receipts
    assert {owner: len(mine) for owner, mine in kept._replies.items()} == {"maker#0": KEPT}
    hub.give(maker, 20)
    monkeypatch.setattr("transfer_queue.controller.receipts.KEPT_BYTES", 30 * 8)
    hub.give(maker, 20)
    assert kept._bytes == {"maker#0": 20 * 8}
    hub.join("maker")
    assert not kept._replies
    assert not kept._bytes


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"groups": 0}, "groups=0"),
        ({"groups": 2**62}, "groups="),
        ({"rows_per_group": 0}, "rows_per_group=0"),
        ({"rows_per_group": 1 << 20}, "rows_per_group="),
        ({"groups": 3}, "2 slices for 3 keys"),
        ({"columns": {}}, "missing"),
        ({"columns": {"tokens": b"x"}}, "(1 bytes, 32 a slice)"),
        ({"columns": {"tokens": m.packed_places([None, None])}}, "not optional"),
        ({"columns": {"tokens": m.packed([[0, 1, 0, 1], [0, -1, 0, 1]])}}, "no place"),
        ({"columns": {"tokens": m.packed([[0, 1, 0, 1], [0, 2, 9, 1]])}}, "no place"),
        ({"columns": {"tokens": m.packed_places([m.Slice(0, 900, 0, 1)] * 2), "x": m.packed_places([m.Slice(0, 901, 0, 1)] * 2)}}, "'x'"),
        ({"gids": m.packed([5])}, "'gids' has 8 bytes"),
        ({"gids": m.packed([5, 5])}, "one group each"),
        ({"gids": m.packed([-1, 5])}, "count from 0"),
        ({"gids": m.packed([5, 2**62])}, "2^47"),
        ({"gids": m.packed([5, 0])}, "put before"),
        ({"tokens": m.packed([1])}, "'tokens' has 8 bytes"),
        ({"tokens": m.packed([1, -1])}, "tokens of a row"),
        ({"tokens": m.packed([1, 2**62])}, "tokens of a row"),
        ({"version": 1}, "version=1"),
        ({"version": -1}, "version=-1"),
        ({"topic": "nowhere"}, "nowhere"),
    ],
)
def test_a_put_that_breaks_a_rule_changes_nothing_and_its_bytes_are_freed(change: dict[str, Any], part: str) -> None:
    hub = Hub(stream(batch=8, staleness=0))
    maker = hub.join("maker")
    hub.give(maker, 1)
    good, named = hub.message(maker, 2)
    broken = msgspec.structs.replace(good, **change)
    assert part in hub.refuse(maker.connection, broken, "unknown_topic" if "topic" in change else "bad_request")
    if "columns" not in change:
        assert hub.freed() == named
    assert hub.ledger() == {"complete": 1}
    assert hub.topic.stored_rows == 1
    assert hub.ask(maker.connection, good, m.OkStored).groups == [1, 2], "neither the numbers nor the token were used up"


@given(seed=st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_whatever_a_put_says_it_is_stored_whole_or_refused_and_changes_nothing(seed: int) -> None:
    rng = Random(seed)
    hub = Hub(stream(batch=8, staleness=0))
    maker = hub.join("maker")
    request, _ = hub.message(maker, 2, each=2, gids=[3, 4])
    changed = msgspec.structs.replace(request, **{name: getattr(mutate(request, rng), name) for name in ("groups", "gids", "columns", "version")})
    try:
        wild = decode_request(encode(changed))
    except (msgspec.DecodeError, OverflowError):
        return
    number = hub.send(maker.connection, wild)
    reply = hub.replies[number]
    if isinstance(reply, m.ErrorReply):
        assert reply.code == "bad_request", reply
        assert hub.topic.stored_rows == len(hub.topic.groups) == 0
        assert not hub.core.live_blocks(0)
        assert hub.give(maker, 1) == [0]
    else:
        assert isinstance(reply, m.OkStored)
        assert hub.topic.stored_rows == 2 * len(reply.groups) == 4


def test_gids_may_be_named_and_the_count_goes_on_behind_them() -> None:
    hub = Hub(stream(batch=9, staleness=0))
    maker = hub.join("maker")
    assert hub.give(maker, 2, gids=[7, 3]) == [7, 3]
    assert hub.give(maker, 1) == [8]
    assert [hub.give(maker, 1, gids=[gid]) for gid in (0, 1, 2, 4, 5, 6)] == [[0], [1], [2], [4], [5], [6]]
    assert not hub.topic.prompts._seen._above, "what is dense costs nothing"
    assert gids(hub.take(hub.join("trainer", "trainer"), step=0)) == list(range(9))


def test_rows_too_old_for_the_window_are_refused_where_they_are_put() -> None:
    hub = Hub(stream(batch=1, staleness=1))
    maker, trainer = hub.join("maker"), hub.join("trainer", "trainer")
    for step in range(2):
        hub.give(maker, 1)
        hub.ask(trainer.connection, hub.commit(trainer, step, [hub.take(trainer, step=step).lease]), m.OkCommitted)
    assert hub.give(maker, 1, version=1) == [2]
    hub.freed()
    request, named = hub.message(maker, 1, version=1)
    assert "version=1 of a put is outside [2, 2]" in hub.refuse(maker.connection, request, "stale"), "behind an open group it would be too late"
    assert hub.freed() == named
    assert hub.give(maker, 1) == [3]


def test_a_topic_that_is_over_takes_nothing_and_says_so() -> None:
    hub = Hub(stream(batch=1, staleness=0))
    maker, trainer = hub.join("maker"), hub.join("trainer", "trainer")
    hub.ask(maker.connection, m.ClosePrompts(topic="t", count=1), m.OkEmpty)
    hub.give(maker, 1)
    parked = hub.send(maker.connection, hub.message(maker, 1, wait_s=50.0)[0])
    hub.ask(trainer.connection, hub.commit(trainer, 0, [hub.take(trainer, step=0).lease]), m.OkCommitted)
    assert hub.replies[parked] == m.OkStored(id=parked, done=True)
    assert hub.topic.stored_rows == 0


def test_a_stall_of_a_topic_without_prompts_names_who_puts_and_not_a_source() -> None:
    hub = Hub(stream(batch=2, staleness=0), stall_s=10.0, heartbeat_s=1e6)
    maker = hub.join("maker")
    trainer = hub.join("trainer", "trainer")
    hub.give(maker, 1)
    hub.send(trainer.connection, m.Take(topic="t", consumer="trainer", limit=2, at_least=2, step=0, wait_s=60.0, **trainer.fields))
    hub.wait(10.0)
    verdict = hub.core.status().reason
    assert "stage 'rollout': maker#0 does not ask for more work, though there is room for more groups than were put" in verdict


def test_what_names_a_row_whose_place_another_row_has_by_now_touches_nothing_of_it() -> None:
    """Slots are used again; generations tell that a lease speaks of rows that are gone."""
    desk = Desk(spec(batch=2, staleness=None, rows=1), lease_s=5.0, heartbeat_s=1e6)
    maker, slow = desk.join("maker"), desk.join("slow", "worker")

    def give(count: int) -> None:
        columns = {name: [desk.slice() for _ in range(count)] for name in ("tokens", "prompt")}
        desk.ask(maker.connection, put(count, columns, token=desk._blocks, topic="policy", **maker.fields), m.OkStored)

    give(2)
    old = desk.take(slow, "reward")
    slots = np.flatnonzero(desk.topic.groups.rows.there).tolist()
    desk.ask(slow.connection, m.DropGroups(topic="policy", gids=[0, 1], reason="tired", **slow.fields), m.OkEmpty)
    give(2)
    assert np.flatnonzero(desk.topic.groups.rows.there).tolist() == slots, "the same places hold other rows"
    before = [(group.gid, group.pending, {index: row.missing for index, row in group.rows.items()}) for group in desk.topic.groups.values()]
    desk.freed()
    late = {"reward": [desk.slice() for _ in range(2)]}
    request = write_back(late, [(0, 0), (1, 0)], topic="policy", consumer="reward", lease=old.lease, **slow.fields)
    assert desk.ask(slow.connection, request, m.OkWritten).closed == [0, 1]
    assert desk.freed() == blocks(late)
    desk.wait(5.0)
    assert before == [(group.gid, group.pending, {index: row.missing for index, row in group.rows.items()}) for group in desk.topic.groups.values()]
    assert gids(desk.take(slow, "reward")) == [2, 3]


def _best(stored: int, batch: int = 64, rounds: int = 40) -> float:
    """Seconds of put, take and commit of a batch behind `stored` rows; the best round, so that a busy machine does not decide the test."""
    hub = Hub(stream(batch=batch, staleness=None, budget_bytes=1 << 50), heartbeat_s=1e9, stall_s=1e9)
    maker, trainer = hub.join("maker"), hub.join("trainer", "trainer")
    for start in range(0, stored, 10_000):
        hub.give(maker, min(10_000, stored - start))
    best = float("inf")
    for step in range(rounds):
        request, _ = hub.message(maker, batch)
        start_s = time.perf_counter()
        hub.ask(maker.connection, request, m.OkStored)
        taken = hub.take(trainer, step=step)
        hub.ask(trainer.connection, hub.commit(trainer, step, [taken.lease]), m.OkCommitted)
        best = min(best, time.perf_counter() - start_s)
        hub.freed()
    assert hub.topic.stored_rows == stored
    return best


def test_a_batch_behind_100_000_stored_rows_costs_less_than_twice_what_it_costs_behind_1_000() -> None:
    few, many = _best(1_000), _best(100_000)
    print(f"put, take and commit of 64 rows: {few * 1e3:.2f} ms behind 1,000 rows, {many * 1e3:.2f} ms behind 100,000")
    assert many < 2 * few


@given(each=st.integers(1, 3), gids=st.lists(st.integers(0, 60), min_size=2, max_size=40, unique=True), numbered=st.booleans(), shared=st.booleans())
@settings(max_examples=40, deadline=None)
def test_groups_that_come_at_once_are_what_they_would_be_one_by_one(each: int, gids: list[int], numbered: bool, shared: bool) -> None:
    """Many are stored as arrays, one alone as numbers."""
    hubs = [Hub(reading(stream(batch=40, staleness=0, sampler="oldest_first"))) for _ in range(2)]
    together, alone = hubs
    count = len(gids)
    columns = {"tokens": [together.slice() for _ in range(count * each)], **({"prompt": [together.slice() for _ in range(count)]} if shared else {})}
    makers, readers, trainers = ([hub.join(name, name) for hub in hubs] for name in ("maker", "reader", "trainer"))
    tokens = list(range(count * each))
    for hub, maker, parts in ((together, makers[0], [range(count)]), (alone, makers[1], [range(at, at + 1) for at in range(count)])):
        for part in parts:
            rows = slice(part.start * each, part.stop * each)
            mine = {name: found[rows] if name == "tokens" else found[part.start : part.stop] for name, found in columns.items()}
            named = [] if numbered else [gids[at] for at in part]
            hub.puts += 1
            request = put(len(part), mine, hub.puts, each, named, topic="t", wait_s=0.0, tokens=m.packed(tokens[rows]), **maker.fields)
            assert hub.ask(maker.connection, request, m.OkStored).groups == (named or list(part))
    assert together.log.events == [*alone.log.of("member")[:3], *alone.log.of("group")], "an event a group, in the order of the put"
    read = [hub.take(reader, consumer="reader", limit=200).rows for hub, reader in zip(hubs, readers, strict=True)]
    batches = [hub.take(trainer, step=0) for hub, trainer in zip(hubs, trainers, strict=True)]
    assert read[0] == read[1]
    assert len(read[0]) == count * each
    assert batches[0].rows == batches[1].rows
    for hub, trainer in zip(hubs, trainers, strict=True):
        assert hub.topic.groups.groups.tokens[hub.topic.groups.all()].tolist() == [sum(tokens[at * each : (at + 1) * each]) for at in range(count)]
        hub.ask(trainer.connection, m.DropGroups(topic="t", gids=list(range(61)), reason="over", **trainer.fields), m.OkEmpty)
    assert together.ledger() == alone.ledger()


def reading(topic: m.TopicSpec) -> m.TopicSpec:
    """With a reader of rows beside the trainer."""
    return msgspec.structs.replace(topic, consumers=(m.Consumer("reader", inputs=("tokens", "prompt")), *topic.consumers))


def test_rows_without_any_column_are_put_many_at_a_time_as_one_by_one() -> None:
    topic = stream(batch=4, staleness=0)
    free = msgspec.structs.replace(topic, columns=tuple(msgspec.structs.replace(column, optional=True) for column in topic.columns))
    hub = Hub(free)
    maker, trainer = hub.join("maker"), hub.join("trainer", "trainer")
    assert hub.ask(maker.connection, put(3, {}, 1, topic="t", **maker.fields), m.OkStored).groups == [0, 1, 2]
    assert hub.ask(maker.connection, put(1, {}, 2, topic="t", **maker.fields), m.OkStored).groups == [3]
    assert [row.columns for row in hub.take(trainer, step=0).rows] == [[None, None]] * 4
