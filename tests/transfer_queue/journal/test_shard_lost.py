"""A shard ends: what lay there is made again or dropped, permits included, and nobody is handed what cannot be read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from controller_bench import spec
from controller_desk import Desk, Who, gids, plain
from controller_messages import put, put_rows, write_back
from controller_world import Settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from journal_lossy import BlindTrainer, LossyWorld

from transfer_queue import messages as m
from transfer_queue.controller.blocks import Blocks
from transfer_queue.controller.prompts import PromptQueue
from transfer_queue.shard.messages import LIFE_BITS


class ShardDesk(Desk):
    """What is written lies on the shard `on`."""

    on = 0

    def slice(self) -> m.Slice:
        piece = super().slice()
        return msgspec.structs.replace(piece, shard=self.on)

    def shard(self, index: int) -> Who:
        return self.join(f"shard-{index}", "shard", shard=f"tcp://127.0.0.1:{9000 + index}")

    def lose(self, index: int) -> None:
        self.ask(b"launcher", m.MemberDead(member=f"shard-{index}", incarnation=-1, cause="killed"), m.OkEmpty)


@pytest.fixture
def desk() -> ShardDesk:
    """Two shards, two complete groups of two rows whose prompts lie on shard 0 and whose responses on shard 1."""
    desk = ShardDesk(spec(batch=2, staleness=1))
    desk.shard(0)
    desk.shard(1)
    desk.prompts(4)
    desk.on = 1
    rollout = desk.join("rollout-0")
    for lease in desk.pull(rollout, 2):
        desk.put(rollout, lease)
    return desk


def everything_but(desk: Desk, worker: Who, *left: str) -> None:
    for consumer, column, weights in (("reward", "reward", None), ("forward", "old_logprobs", 0), ("advantage", "advantage", None)):
        if column not in left:
            desk.write(worker, desk.take(worker, consumer, loaded=0), consumer, column, weights)


def test_the_run_goes_on_and_a_shard_of_the_same_name_may_come(desk: ShardDesk) -> None:
    desk.lose(1)
    assert not desk.core.stopped
    again = desk.shard(1)
    assert again.incarnation == 1
    reply = desk.ask(again.connection, m.Roster(**again.fields), m.OkRoster)
    assert [(shard.index, shard.life) for shard in reply.shards] == [(0, 0), (1, 1)]


def test_lost_responses_are_generated_again_from_the_prompt(desk: ShardDesk) -> None:
    desk.lose(1)
    assert desk.states() == {0: "admitted", 1: "admitted"}
    assert desk.topic.stored_rows == 0
    desk.on = 0
    rollout = desk.join("rollout-1")
    leases = desk.pull(rollout, 2)
    assert [lease.rows for lease in leases] == [[0, 1], [0, 1]]
    for lease in leases:
        assert not desk.put(rollout, lease)
    assert desk.states() == {0: "complete", 1: "complete"}


def test_rows_that_lie_elsewhere_stay_and_what_was_made_of_the_whole_group_is_made_anew(desk: ShardDesk) -> None:
    rollout, worker = desk.join("rollout-1"), desk.join("worker", "worker")
    (lease,) = desk.pull(rollout, 1)
    rows = [desk.row(lease, 0)]
    desk.on = 0
    rows.append(desk.row(lease, 1))
    desk.ask(rollout.connection, put_rows(rows, topic="policy", close={lease.gid: 2}, **rollout.fields), m.OkPut)
    everything_but(desk, worker)
    desk.lose(1)
    assert desk.states()[lease.gid] == "admitted"
    group = desk.topic.groups[lease.gid]
    assert set(group.rows) == {1}
    assert group.rows[1].columns == {"tokens", "reward", "old_logprobs"}, "the advantage was computed over a row that is no more"
    again = next(found for found in desk.pull(rollout, 4) if found.gid == lease.gid)
    assert again.rows == [0]
    assert not desk.put(rollout, again)
    everything_but(desk, worker, "advantage")
    taken = desk.take(worker, "advantage")
    assert lease.gid in gids(taken)
    assert [row.row for row in taken.rows if row.gid == lease.gid] == [0, 1]


def test_a_lost_prompt_of_an_open_group_drops_it_with_its_permit_and_the_next_one_takes_its_place(desk: ShardDesk) -> None:
    open_before, rollout = desk.topic.ledger.open, desk.join("rollout-1")
    (third,) = desk.pull(rollout, 1)
    desk.lose(0)
    assert desk.states() == {}
    assert desk.ledger() == {"dropped:shard_lost": open_before + 1}
    assert (third.gid, third.fence) in desk.watch(rollout).cancelled
    source = desk.join("source-1", "source")
    demand = desk.ask(source.connection, m.Demand(topic="policy", wait_s=0.0, **source.fields), m.OkDemand)
    assert demand.cursor == 3, "the waiting prompt is asked for again, the dropped ones are not"


def rewinding() -> ShardDesk:
    """Groups 0 and 1 are generated, prompts 2 to 5 wait; those with an even gid lie on shard 0, the others on shard 1."""
    desk = ShardDesk(msgspec.structs.replace(plain(batch=2, staleness=0), rewinds=True))
    desk.shard(0)
    desk.shard(1)
    put_again(desk, desk.join("source", "source"), range(6), (0, 1))
    assert [lease.gid for lease in desk.pull(desk.join("rollout-0"), 4)] == [0, 1]
    return desk


def put_again(desk: ShardDesk, source: Who, gids: Iterable[int], shards: tuple[int, ...]) -> int:
    puts = []
    for gid in gids:
        desk.on = shards[gid % len(shards)]
        puts.append(m.PromptPut(gid=gid, columns={"prompt": desk.slice()}))
    cursor = max(prompt.gid for prompt in puts) + 1
    reply = desk.ask(source.connection, m.PutPrompts(topic="t", prompts=puts, cursor=cursor, **source.fields), m.OkPrompts)
    assert reply.cursor >= cursor, "a smaller one would say that nothing was stored"
    return reply.accepted


def cursor_of(desk: ShardDesk, source: Who) -> int:
    return desk.ask(source.connection, m.Demand(topic="t", wait_s=0.0, **source.fields), m.OkDemand).cursor


def test_a_source_that_rewinds_puts_the_prompts_of_dropped_groups_again_and_none_overtakes_them() -> None:
    desk = rewinding()
    desk.lose(0)
    assert desk.ledger() == {"admitted": 1, "dropped:shard_lost": 1}
    rollout, source = desk.join("rollout-1"), desk.join("source-1", "source")
    assert desk.pull(rollout, 4) == [], "3 waits, and there is a permit, but 0 comes first"
    assert cursor_of(desk, source) == 0
    assert put_again(desk, source, [6, 7], (1,)) == 2, "a put that was under way"
    assert cursor_of(desk, source) == 0
    assert put_again(desk, source, [0], (1,)) == 1
    assert cursor_of(desk, source) == 2, "1 is there"
    (lease,) = desk.pull(rollout, 4)
    assert lease.gid == 0
    born = [event for event in desk.log.of("group") if event.gid == 0 and event.src == ""]
    assert [event.data["life"] for event in born] == [0, 1]
    assert put_again(desk, source, range(2, 6), (1,)) == 2
    assert [prompt.gid for prompt, _ in desk.topic.prompts.freeze().waiting] == [2, 3, 4, 5, 6, 7]


def with_two_admitted() -> tuple[ShardDesk, Who]:
    """Two groups whose prompts lie on shard 0, and room for two more to wait; and the source."""
    desk = ShardDesk(msgspec.structs.replace(plain(batch=2, staleness=0), rewinds=True, prompts_bound=2))
    desk.shard(0)
    desk.shard(1)
    source = desk.join("source", "source")
    put_again(desk, source, [0, 1], (0,))
    desk.pull(desk.join("rollout-0"), 2)
    return desk, source


def test_prompts_that_come_again_have_room_though_the_others_fill_it() -> None:
    desk, source = with_two_admitted()
    put_again(desk, source, [2, 3], (1,))
    desk.lose(0)
    demand = desk.ask(source.connection, m.Demand(topic="t", wait_s=0.0, **source.fields), m.OkDemand)
    assert (demand.wanted, demand.cursor) == (2, 0)
    assert put_again(desk, source, [0, 1], (1,)) == 2
    assert [lease.gid for lease in desk.pull(desk.join("rollout-1"), 2)] == [0, 1]


def test_as_many_prompts_as_are_asked_for_may_be_put_at_once_with_those_that_come_again() -> None:
    desk, source = with_two_admitted()
    desk.lose(0)
    demand = desk.ask(source.connection, m.Demand(topic="t", wait_s=0.0, **source.fields), m.OkDemand)
    assert (demand.wanted, demand.cursor) == (4, 0)
    assert put_again(desk, source, range(4), (1,)) == 4
    assert [lease.gid for lease in desk.pull(desk.join("rollout-1"), 4)] == [0, 1]


def test_prompts_that_are_to_come_again_are_part_of_a_snapshot() -> None:
    desk = rewinding()
    desk.lose(0)
    frozen = desk.topic.prompts.freeze()
    other = PromptQueue(8, Blocks())
    other.thaw(frozen)
    assert other.freeze() == frozen
    assert frozen.returning == {0: 1, 2: 0, 4: 0}
    assert not other.has_next


def test_waiting_prompts_are_put_again_and_others_are_ignored() -> None:
    desk = ShardDesk(plain())
    desk.shard(0)
    desk.shard(1)
    source = desk.join("source", "source")
    pieces = {gid: m.Slice(gid % 2, gid + 1, 0, 1) for gid in range(4)}
    puts = [m.PromptPut(gid=gid, columns={"prompt": piece}) for gid, piece in pieces.items()]
    desk.ask(source.connection, m.PutPrompts(topic="t", prompts=puts, cursor=4, **source.fields), m.OkPrompts)
    desk.lose(1)
    assert len(desk.topic.prompts) == 2
    demand = desk.ask(source.connection, m.Demand(topic="t", wait_s=0.0, **source.fields), m.OkDemand)
    assert demand.cursor == 1
    again = [m.PromptPut(gid=gid, columns={"prompt": m.Slice(0, 10 + gid, 0, 1)}) for gid in range(1, 4)]
    reply = desk.ask(source.connection, m.PutPrompts(topic="t", prompts=again, cursor=4, **source.fields), m.OkPrompts)
    assert (reply.accepted, reply.cursor) == (2, 4)
    assert desk.freed() == [12], "what was put a second time"
    rollout = desk.join("rollout-0")
    assert sorted(lease.gid for lease in desk.pull(rollout, 4)) == [0, 1, 2, 3]


def test_a_lost_column_of_a_stage_is_written_again_by_it_alone(desk: ShardDesk) -> None:
    worker = desk.join("worker", "worker")
    desk.on = 0
    everything_but(desk, worker, "old_logprobs", "advantage")
    desk.on = 2
    desk.shard(2)
    desk.write(worker, desk.take(worker, "forward", loaded=0), "forward", "old_logprobs", 0)
    desk.lose(2)
    assert desk.states() == {0: "complete", 1: "complete"}
    assert desk.take(worker, "reward").lease == -1
    desk.on = 0
    taken = desk.take(worker, "forward", loaded=0)
    assert len(taken.rows) == 4
    desk.write(worker, taken, "forward", "old_logprobs", 0)
    desk.write(worker, desk.take(worker, "advantage"), "advantage", "advantage")
    assert len(desk.take(desk.join("trainer", "trainer"), step=0).rows) == 4


def test_a_column_that_is_lost_again_and_again_is_no_new_work_for_who_has_read_it(desk: ShardDesk) -> None:
    worker, others = desk.join("worker", "worker"), ("old_logprobs", "advantage")
    desk.shard(2)
    desk.shard(3)
    desk.on = 2
    everything_but(desk, worker, *others)
    desk.on = 0
    everything_but(desk, worker, "reward")
    for lost, next_one in ((2, 3), (3, 0)):
        desk.lose(lost)
        desk.on = next_one
        everything_but(desk, worker, *others)
        assert desk.take(worker, "advantage").lease == -1
    trainer = desk.join("trainer", "trainer")
    desk.ask(trainer.connection, desk.commit(trainer, 0, [desk.take(trainer, step=0).lease]), m.OkCommitted)
    assert len(desk.core.live_blocks(0)) == 2, "of the prompts that wait"


def test_a_lease_on_what_was_lost_is_answered_closed_and_its_work_is_given_out_again(desk: ShardDesk) -> None:
    worker = desk.join("worker", "worker")
    taken = desk.take(worker, "reward")
    desk.on = 0
    desk.lose(1)
    assert desk.write(worker, taken, "reward", "reward") == [0, 1]
    assert desk.freed() != []
    assert desk.take(worker, "reward").lease == -1


def test_what_names_a_lost_block_is_refused_and_what_else_it_named_is_freed(desk: ShardDesk) -> None:
    rollout, worker = desk.join("rollout-1"), desk.join("worker", "worker")
    (lease,) = desk.pull(rollout, 1)
    desk.on = 1
    rows = [desk.row(lease, 0)]
    desk.on = 0
    rows.append(desk.row(lease, 1))
    desk.shard(2)
    desk.on = 2
    stored = desk.slice()
    desk.lose(1)
    assert "write the columns again" in desk.refuse(rollout.connection, put_rows(rows, topic="policy", **rollout.fields), "shard_lost")
    assert desk.freed() == [rows[1].columns["tokens"].block]
    desk.lose(2)
    desk.on = 0
    assert not desk.put(rollout, lease)
    taken = desk.take(worker, "reward")
    columns = {"reward": [stored] * len(taken.rows)}
    keys = [(row.gid, row.row) for row in taken.rows]
    request = write_back(topic="policy", consumer="reward", lease=taken.lease, columns=columns, keys=keys, **worker.fields)
    desk.refuse(worker.connection, request, "shard_lost")
    assert not desk.write(worker, taken, "reward", "reward"), "the same lease, with bytes that are there"


def test_a_parked_put_learns_that_its_bytes_are_gone() -> None:
    desk = ShardDesk(plain(batch=1, staleness=0))
    desk.shard(0)
    desk.shard(1)
    who = desk.join("a")
    columns: dict[str, list[m.Slice]] = {"tokens": [m.Slice(0, 1, 0, 1)], "prompt": [m.Slice(0, 2, 0, 1)]}
    desk.ask(who.connection, put(1, columns, topic="t", **who.fields), m.OkStored)
    waits = desk.send(who.connection, put(1, {name: [m.Slice(1, 1, 0, 1)] for name in columns}, token=2, topic="t", wait_s=50.0, **who.fields))
    assert waits not in desk.replies
    desk.lose(1)
    reply = desk.replies[waits]
    assert isinstance(reply, m.ErrorReply)
    assert reply.code == "shard_lost"


def test_groups_that_were_put_whole_cannot_be_made_again() -> None:
    desk = ShardDesk(plain())
    desk.shard(0)
    who = desk.join("a")
    columns = {"tokens": [m.Slice(0, 1, 0, 1)] * 2, "prompt": [m.Slice(0, 2, 0, 1)] * 2}
    desk.ask(who.connection, put(2, columns, topic="t", **who.fields), m.OkStored)
    desk.lose(0)
    assert desk.ledger() == {"dropped:shard_lost": 2}


def test_a_batch_of_a_trainer_is_left_to_it(desk: ShardDesk) -> None:
    worker, trainer = desk.join("worker", "worker"), desk.join("trainer", "trainer")
    everything_but(desk, worker)
    taken = desk.take(trainer, step=0)
    assert gids(taken) == [0, 1]
    desk.lose(1)
    assert desk.states() == {0: "leased", 1: "leased"}, "it may have read them"
    desk.ask(trainer.connection, m.DropGroups(topic="policy", gids=[0], reason="shard_lost", **trainer.fields), m.OkEmpty)
    desk.refuse(trainer.connection, desk.commit(trainer, 0, [taken.lease]), "bad_request")
    desk.on = 0
    rollout = desk.join("rollout-1")
    for lease in desk.pull(rollout, 1):
        desk.put(rollout, lease)
    everything_but(desk, worker)
    more = desk.take(trainer, step=0)
    assert gids(more) == [2]
    assert desk.ask(trainer.connection, desk.commit(trainer, 0, [taken.lease, more.lease]), m.OkCommitted).trained == 2


def test_the_bytes_of_a_shard_that_leaves_at_the_end_are_nobodys_loss(desk: ShardDesk) -> None:
    desk.ask(b"launcher", m.Stop(reason="end"), m.OkEmpty)
    desk.lose(1)
    assert desk.states() == {0: "complete", 1: "complete"}


def finish(world: LossyWorld) -> None:
    options = world.settings
    status = world.run()
    counts = status.topics[0].ledger
    assert status.reason == "completed", f"{options} did not finish: {status.reason}"
    assert counts["trained"] == options.total == len(world.trained_gids) == len(set(world.trained_gids)), "trained once, each"
    if options.staleness is not None:
        assert max(world.stalenesses) <= options.staleness
    assert not any(world.core.live_blocks(shard) for shard in range(world.shards)), "every block is freed"


@given(
    seed=st.integers(0, 2**32),
    staleness=st.sampled_from([0, 1, 2, None]),
    policy=st.sampled_from(["wait", "drop"]),
    requeue=st.booleans(),
    losses=st.sampled_from([0.01, 0.04]),
    blind=st.booleans(),
    hand_backs=st.sampled_from([0.0, 0.1]),
    rewinds=st.booleans(),
)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_run_whose_shards_are_lost_again_and_again_keeps_the_bound_and_ends(losses: float, blind: bool, rewinds: bool, **options: Any) -> None:
    world = LossyWorld(Settings(total=9, **options), losses=losses, rewinds=rewinds)
    if blind:
        world.actors = [BlindTrainer(world, "trainer") if actor.name == "trainer" else actor for actor in world.actors]
    finish(world)
    if rewinds and not blind and (options["policy"] == "wait" or options["staleness"] is None):
        assert sorted(world.trained_gids) == list(range(9)), "no other group took the place of one that was lost"


def test_losses_really_happen_in_these_runs() -> None:
    reasons: set[str] = set()
    lost = {"groups": 0, "rows": 0, "columns": 0, "prompts": 0}
    for seed in range(4):
        world = LossyWorld(Settings(seed=seed, total=17), losses=0.1)
        finish(world)
        for event in world.log.events:
            reasons.add(event.reason)
            if event.kind == "topic" and event.reason == "shard_lost":
                lost = {name: count + int(event.data[name]) for name, count in lost.items()}
    assert min(lost.values()) > 0, lost


def test_block_numbers_of_another_life_are_others() -> None:
    from transfer_queue.shard.store import Store

    store = Store(1 << 20)
    store.begin(2)
    assert store.write("a#0", [b"x"], [[0, 1]]).first == 2 << LIFE_BITS
    store.close()
