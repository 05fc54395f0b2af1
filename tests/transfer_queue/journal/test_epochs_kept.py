"""What was handed back asks for the epoch of its last token also after a controller came back, and in the queue that a save is loaded into."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from controller_bench import Log
from controller_desk import Desk
from test_controller_epochs import Run
from test_saving import loaded, saved

from transfer_queue import messages as m
from transfer_queue.controller.core import Core, CoreConfig
from transfer_queue.frozen import from_bytes, to_bytes


def thawed(desk: Desk) -> Core:
    frozen = desk.core.freeze()
    core = Core(CoreConfig(topics=[desk.spec]), desk.log, desk.clock)
    core.thaw(from_bytes(type(frozen), to_bytes(frozen)))
    return core


def loaded_anew(desk: Desk) -> Core:
    return loaded(CoreConfig(topics=[desk.spec]), Log(), desk.clock, saved(desk.core))


@pytest.mark.parametrize("again", [thawed, loaded_anew])
def test_what_comes_back_asks_for_the_same_epoch(again: Callable[[Desk], Core]) -> None:
    run = Run()
    who, lease = run.holder()
    left, _ = run.hand_back(who, lease, {0: (2, 2), 1: (2, 2)})
    desk = run.desk
    desk.core = again(desk)
    desk.core.outbox.clear()
    assert desk.topic.groups[lease.gid].left == left
    one, two = desk.join("rollout-1"), desk.join("rollout-2")
    assert lease.gid not in [found.gid for found in desk.pull(one, 1, loaded=2, epoch=0)]
    (found,) = desk.pull(two, 1, loaded=2, epoch=1)
    assert (found.gid, found.min_version, found.epoch) == (lease.gid, 2, 1)


@pytest.mark.parametrize("again", [lambda desk: desk.core, thawed])
def test_weights_of_an_epoch_before_that_of_a_loaded_queue_are_refused_by_name(again: Callable[[Desk], Core]) -> None:
    """Nobody could start a group with them: before, the run stood still and only the stall report was there to say so."""
    desk = Run().desk
    desk.core = loaded_anew(desk)
    desk.core.outbox.clear()
    desk.core = again(desk)
    desk.core.outbox.clear()
    teller = desk.join("publisher-0", "publisher")
    old, new = (m.Published(weights=m.ModelVersion("policy", epoch, 4), **teller.fields) for epoch in (0, 1))
    words = desk.refuse(teller.connection, old)
    assert "epoch=0 of 'policy' 0.4 is older than 1, in which the queue that was loaded committed last" in words
    assert "Publish under epoch 1 or a later one" in words
    desk.ask(teller.connection, new, m.OkEmpty)
    assert desk.pull(desk.join("rollout-1"), 1, loaded=4, epoch=1)
