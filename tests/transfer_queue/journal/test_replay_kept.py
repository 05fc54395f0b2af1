"""Groups that are kept to be replayed, in any run: through deaths of workers, shards and the controller, through a save and a load."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from controller_bench import Log
from controller_world import Settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from journal_kept import kept_state, state
from journal_lossy import BlindTrainer
from journal_replayed import GROUP_BYTES, TRAINER, WORST_BYTES, DealtReplayedWorld, KeptReplayedWorld, LossyReplayedWorld, ReplayedWorld
from test_saving import loaded, saved

from transfer_queue import messages as m
from transfer_queue.controller.image import decoded
from transfer_queue.controller.replays import Replays
from transfer_queue.frozen import from_bytes, to_bytes
from transfer_queue.saving.places import Named

SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
ANY_RUN = {
    "seed": st.integers(0, 2**32),
    "staleness": st.sampled_from([1, 2, None]),
    "policy": st.sampled_from(["wait", "drop"]),
    "drops": st.sampled_from([0.0, 0.1]),
}


@st.composite
def replays(draw: st.DrawFn, even: bool = False) -> m.Replay:
    """`even`: to be dealt to two ranks."""
    groups = 2 * draw(st.integers(1, 3)) if even else draw(st.integers(1, 6))
    keep = draw(st.integers(groups, 12))
    nbytes = draw(st.none() | st.integers(groups * WORST_BYTES, 13 * GROUP_BYTES))
    return m.Replay(groups, keep, nbytes, draw(st.sampled_from(["uniform", "least_replayed"])), draw(st.integers(0, 3)))


@pytest.fixture
def folder() -> Iterator[Path]:
    """On a file system in memory where there is one: nothing here looks at what a disk does."""
    shm = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="journal-", dir=shm if shm.is_dir() else None))
    yield path
    shutil.rmtree(path)


@given(replay=replays(), requeue=st.booleans(), deaths=st.sampled_from([0.01, 0.04]), **ANY_RUN)
@settings(max_examples=7, suppress_health_check=SLOW)
def test_any_run_trains_each_group_once_and_replays_what_it_trained(replay: m.Replay, **options: Any) -> None:
    ReplayedWorld(Settings(**options), replay).finish()


@given(replay=replays(), losses=st.sampled_from([0.01, 0.04]), rewinds=st.booleans(), blind=st.booleans(), **ANY_RUN)
@settings(max_examples=6, suppress_health_check=SLOW)
def test_any_run_whose_shards_are_lost_replays_only_what_can_be_read(
    replay: m.Replay, losses: float, rewinds: bool, blind: bool, **options: Any
) -> None:
    world = LossyReplayedWorld(Settings(total=14, **options), replay, 2, losses, rewinds)
    if blind:
        world.actors = [BlindTrainer(world, "trainer") if actor.name == "trainer" else actor for actor in world.actors]
    world.finish()


@given(replay=replays(even=True), deaths=st.sampled_from([0.01, 0.04]), **ANY_RUN)
@settings(max_examples=5, suppress_health_check=SLOW)
def test_any_run_deals_what_is_replayed_to_its_ranks(replay: m.Replay, **options: Any) -> None:
    DealtReplayedWorld(Settings(total=17, **options), replay).finish()


@given(replay=replays(even=True), kill=st.sampled_from([0.01, 0.03]), snapshot_bytes=st.sampled_from([1, 20_000]), **ANY_RUN)
@settings(max_examples=3, suppress_health_check=SLOW)
def test_any_run_whose_controller_is_killed_counts_on(folder: Path, replay: m.Replay, kill: float, snapshot_bytes: int, **options: Any) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        world = KeptReplayedWorld(Settings(total=12, **options), replay, Path(own), kill, snapshot_bytes)
        world.finish()
        world.kept.leave()


@given(replay=replays(even=True), snapshot_bytes=st.sampled_from([5_000, 1 << 30]), every=st.integers(20, 90), **ANY_RUN)
@settings(max_examples=5, suppress_health_check=SLOW)
def test_what_would_come_back_is_bit_for_bit_what_there_is(
    folder: Path, replay: m.Replay, snapshot_bytes: int, every: int, **options: Any
) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        world = KeptReplayedWorld(Settings(total=60, **options), replay, Path(own), 0.0, snapshot_bytes)
        for turn in range(600):
            world.step()
            if turn % every == 0:
                world.kept.settle()
                assert kept_state(Path(own), world.config) == state(world.kept.core), f"after {turn} steps"
        world.kept.leave()


def test_in_these_runs_everything_happens() -> None:
    counts: dict[str, int] = {}
    for seed in range(4):
        replay = m.Replay(3, 6, 5 * GROUP_BYTES if seed % 2 else None, "least_replayed" if seed % 3 else "uniform")
        world = LossyReplayedWorld(Settings(seed=seed, total=22, staleness=None if seed % 4 else 1, policy="drop"), replay)
        world.finish()
        for name, count in msgspec.structs.asdict(world.store.status()).items():
            counts[name] = counts.get(name, 0) + count
    assert min(counts[name] for name in ("replayed", "evicted", "expired", "lost")) > 0, counts
    calm = ReplayedWorld(Settings(seed=1, staleness=None), m.Replay(3, 6))
    calm.finish()
    assert max(calm.replayed.values()) > 1, "some group comes more than once"


# ------------------------------------------------------------ save and load


@given(replay=replays(), steps=st.integers(200, 700), narrower=st.booleans(), **ANY_RUN)
@settings(max_examples=10, suppress_health_check=SLOW)
def test_a_load_brings_back_what_was_kept_and_nobody_has_anything_of_it(replay: m.Replay, steps: int, narrower: bool, **options: Any) -> None:
    world = ReplayedWorld(Settings(total=60, **options), replay)
    for _ in range(steps):
        world.step()
    data = saved(world.core)
    image, (topic,) = decoded(data), world.config.topics
    if narrower:
        topic = msgspec.structs.replace(topic, window=msgspec.structs.replace(topic.window, staleness=1))
    named = Named(image)
    elsewhere = np.array([1, 1 << 20, 0, 0])  # on another shard
    moved = named.places + elsewhere
    core = loaded(msgspec.structs.replace(world.config, topics=[topic]), Log(), world.clock, to_bytes(named.renamed(moved)))
    was, store = world.store, core.topics["policy"].replays[TRAINER]
    oldest = core.topics["policy"].window.oldest(core.topics["policy"].version)
    expected = [gid for gid, group in was._kept.items() if oldest is None or group.version >= oldest]
    assert list(store._kept) == expected
    assert (len(store._leased), len(store._lots), store.nbytes) == (0, len(expected), GROUP_BYTES * len(expected))
    for gid, group in store._kept.items():
        assert (group.times, group.version) == (was._kept[gid].times, was._kept[gid].version)
        assert np.array_equal(group.places, was._kept[gid].places + elsewhere)
        assert set(group.blocks[:, 1].tolist()) <= set(core.live_blocks(1))
    assert from_bytes(type(image), data).topics["policy"].replays[TRAINER].counts["replayed"] == store.status().replayed


def test_a_load_under_a_smaller_bound_keeps_the_newest() -> None:
    replay = m.Replay(2, 12)
    world = ReplayedWorld(Settings(seed=3, total=60, staleness=None), replay)
    for _ in range(4000):
        if len(world.store) == 12:
            break
        world.step()
    (spec,), data = world.config.topics, saved(world.core)
    for group_bytes, most in ((3, 12 * 3 // GROUP_BYTES), (WORST_BYTES, 12)):
        window = msgspec.structs.replace(spec.window, group_bytes=group_bytes)
        config = msgspec.structs.replace(world.config, topics=[msgspec.structs.replace(spec, window=window)])
        core = loaded(config, Log(), world.clock, data)
        store: Replays = core.topics["policy"].replays[TRAINER]
        assert list(store._kept) == list(world.store._kept)[-most:]


def test_an_image_of_a_release_without_replays_is_read() -> None:
    world = ReplayedWorld(Settings(seed=3, total=60), m.Replay(2, 12))
    for _ in range(300):
        world.step()
    image = decoded(saved(world.core))
    (topic,) = image.topics.values()
    assert topic.replays[TRAINER].counts["replayed"] > 0
    raw: Any = msgspec.msgpack.decode(to_bytes(image))
    record: Any = msgspec.msgpack.decode(raw["record"])
    del record["topics"]["policy"]["replays"]
    raw["record"] = msgspec.msgpack.encode(record)
    assert decoded(msgspec.msgpack.encode(raw)).topics["policy"].replays == {}
