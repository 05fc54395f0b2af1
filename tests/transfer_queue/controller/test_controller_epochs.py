"""A recovered trainer goes on where its checkpoint ends, under the next epoch: what an older one had beyond that has the same versions, and is
nobody's weights any more. Pulls and hand-backs know the two apart."""

from __future__ import annotations

import msgspec
import pytest
from controller_desk import Desk, Who, plain, train_step

from transfer_queue import messages as m

EPOCHS = (0, 0, 1, 1)  # of the commits: the second trainer went on from version 2, of which the first had made a version 3 of its own


class Run:
    """Four versions by two trainers; one prompt waits, and whoever has any version may start it."""

    def __init__(self) -> None:
        self.desk = Desk(plain(batch=1, staleness=4))
        self.desk.prompts(9)
        rollout, trainer = self.desk.join("rollout-x"), self.desk.join("trainer", "trainer")
        for step, epoch in enumerate(EPOCHS):
            train_step(self.desk, rollout, trainer, step, epoch)
        self.desk.freed()
        self.trainer = trainer

    def holder(self, loaded: int = 2, epoch: int = 0) -> tuple[Who, m.GroupLease]:
        who = self.desk.join("rollout-0")
        (lease,) = self.desk.pull(who, 1, loaded, epoch=epoch)
        return who, lease

    def hand_back(self, who: Who, lease: m.GroupLease, epochs: dict[int, tuple[int, int]]) -> tuple[m.Slice, m.OkHandedBack]:
        item = handed(lease, epochs, self.desk.slice())
        assert item.left is not None
        return item.left, self.desk.ask(who.connection, m.HandBack(topic="t", groups=[item], **who.fields), m.OkHandedBack)


def handed(lease: m.GroupLease, epochs: dict[int, tuple[int, int]], piece: m.Slice) -> m.HandedBack:
    oldest, newest = min(low for low, _ in epochs.values()), max(high for _, high in epochs.values())
    return m.HandedBack(lease.gid, lease.fence, 3, oldest, newest, piece, epochs)


@pytest.mark.parametrize(
    ("loaded", "epoch", "granted"),
    [
        (0, 0, True),
        (1, 0, True),
        (2, 0, True),  # the checkpoint's, as the old trainer published it
        (2, 1, True),  # and as the new one did
        (3, 1, True),
        (4, 1, True),
        (4, 2, True),  # a third one begins from there
        (3, None, True),  # who does not tell means the one that was committed
        (3, 0, False),  # beyond the checkpoint
        (4, 0, False),
        (1, 1, False),  # no trainer of that epoch had it
        (3, 2, False),
    ],
)
def test_only_weights_of_the_present_history_start_a_group(loaded: int, epoch: int | None, granted: bool) -> None:
    desk = Run().desk
    rollout = desk.join("rollout-0")
    request = m.Pull(topic="t", loaded=loaded, limit=1, wait_s=0.0, epoch=epoch, **rollout.fields)
    reply = desk.ask(rollout.connection, request, m.OkPulled)
    assert (len(reply.groups) == 1) is granted
    assert reply.need_version == (None if granted else 0)


def test_a_replica_with_weights_that_were_rolled_back_waits_until_it_has_loaded_others() -> None:
    desk = Run().desk
    rollout = desk.join("rollout-0")
    desk.watch(rollout, loaded={"policy": 3}, epochs={"policy": 0})
    parked = desk.send(rollout.connection, m.Pull(topic="t", loaded=3, limit=1, wait_s=30.0, epoch=0, **rollout.fields))
    assert parked not in desk.replies
    desk.watch(rollout, loaded={"policy": 3}, epochs={"policy": 1})
    reply = desk.replies[parked]
    assert isinstance(reply, m.OkPulled)
    assert len(reply.groups) == 1


def test_tokens_that_were_rolled_back_are_not_kept_and_their_group_starts_anew() -> None:
    run = Run()
    who, lease = run.holder()
    left, reply = run.hand_back(who, lease, {0: (2, 3), 1: (3, 4)})
    assert reply.closed == []
    assert run.desk.freed() == [left.block]
    assert run.desk.log.of("topic")[-1].reason == "rolled_back"
    again = run.desk.pull(who, 1, loaded=0, epoch=0)[0]
    assert (again.gid, again.left, again.rows) == (lease.gid, None, [0])
    assert run.desk.put(who, again, 0) == []


def test_a_run_that_drains_does_not_give_tokens_back_that_were_rolled_back() -> None:
    """Whoever kept them would put them as rows, whose versions are those of the present history."""
    run = Run()
    who, lease = run.holder()
    run.desk.ask(b"launcher", m.Drain(reason="maintenance"), m.OkEmpty)
    left, reply = run.hand_back(who, lease, {0: (2, 3)})
    assert (reply.kept, reply.closed) == ([], [])
    assert run.desk.freed() == [left.block]
    assert run.desk.log.of("topic")[-1].reason == "rolled_back"
    assert run.desk.states()[lease.gid] == "admitted"


def test_whoever_goes_on_needs_the_epoch_of_the_last_token_too() -> None:
    run = Run()
    who, lease = run.holder()
    left, _ = run.hand_back(who, lease, {0: (2, 2), 1: (2, 2)})
    other, third = run.desk.join("rollout-1"), run.desk.join("rollout-2")
    assert lease.gid not in [found.gid for found in run.desk.pull(other, 1, loaded=2, epoch=0)], "the same bytes under an older name"
    again = run.desk.pull(third, 1, loaded=2, epoch=1)[0]
    assert (again.gid, again.left, again.min_version, again.epoch) == (lease.gid, left, 2, 1)
    assert run.desk.put(third, again, 2) == []


def test_a_lease_tells_the_epoch_of_the_weights_that_it_asks_for() -> None:
    desk = Run().desk
    leases = desk.pull(desk.join("rollout-0"), 4, loaded=4, epoch=1)
    assert [(lease.epoch, lease.min_version) for lease in leases] == [(0, 0), (0, 1), (0, 2), (1, 3)]


@pytest.mark.parametrize("epochs", [{1: (1, 3)}, {1: (1, 1)}, {2: (3, 3)}, {2: (3, 4)}, {1: (4, 4), 2: (0, 0)}])
def test_where_two_trainers_went_on_at_once_tokens_that_the_commits_leave_out_are_given_up_and_end_nobody(epochs: dict[int, tuple[int, int]]) -> None:
    """The second trainer published version 1 under its epoch, and the first committed version 2 after that; a third one began at version 3."""
    run = Run()
    who, lease = run.holder()
    left, reply = run.hand_back(who, lease, epochs)
    assert (reply.closed, reply.kept) == ([], [])
    assert run.desk.freed() == [left.block]
    told = run.desk.log.of("topic")[-1]
    assert (told.reason, told.data) == ("rolled_back", {"tokens": 3, "epoch": max(epochs)})
    (again,) = run.desk.pull(who, 1, loaded=4, epoch=1)
    assert (again.gid, again.left) == (lease.gid, None)


REFUSED: list[tuple[dict[int, tuple[int, int]], str]] = [
    ({1: (3, 5)}, "newest_version=5"),  # nobody has committed it
    ({0: (2, 1), 1: (3, 4)}, "versions 2 to 1 of epoch 0"),
    ({1: (3, 4), 2: (4, 3)}, "versions 4 to 3 of epoch 2"),
    ({-1: (2, 2)}, "epoch=-1"),
    ({1 << 60: (4, 4)}, f"epoch={1 << 60}"),
]


@pytest.mark.parametrize(("epochs", "words"), REFUSED)
def test_tokens_of_weights_that_never_were_are_refused(epochs: dict[int, tuple[int, int]], words: str) -> None:
    run = Run()
    who, lease = run.holder()
    item = handed(lease, epochs, run.desk.slice())
    assert words in run.desk.refuse(who.connection, m.HandBack(topic="t", groups=[item], **who.fields))
    assert item.left is not None
    assert item.left.block in run.desk.freed()
    assert run.desk.topic.groups[lease.gid].holder == who.name + "#0"


def test_epochs_and_versions_of_the_same_tokens_must_agree() -> None:
    run = Run()
    who, lease = run.holder()
    item = msgspec.structs.replace(handed(lease, {1: (3, 4)}, run.desk.slice()), oldest_version=2)
    assert "its epochs say 3 and 4" in run.desk.refuse(who.connection, m.HandBack(topic="t", groups=[item], **who.fields))


def test_a_pull_of_no_epoch_is_refused() -> None:
    desk = Run().desk
    who = desk.join("rollout-0")
    for epoch in (-1, 1 << 60):
        assert f"epoch={epoch}" in desk.refuse(who.connection, m.Pull(topic="t", loaded=2, limit=1, epoch=epoch, **who.fields))
