"""Whole runs with random lag, hangs, deaths and restarts: the bound holds, the books balance after every call, and every run ends.

The seed is in the test's name. `World.check` compares the ledger with the records and with a replay of the event log after every call.
"""

from __future__ import annotations

import pytest
from controller_world import Settings, World
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transfer_queue.controller.window import WindowRules
from transfer_queue.messages import Policy, StatusRecord


def finish(options: Settings) -> tuple[World, StatusRecord]:
    world = World(options)
    status = world.run()
    topic, counts = status.topics[0], status.topics[0].ledger
    assert status.reason == "completed", f"{options} did not finish: {status.reason}"
    assert counts["trained"] == options.total == len(world.trained_gids) == len(set(world.trained_gids)), "trained once, each"
    assert topic.open == 0
    assert topic.version == -(-options.total // options.batch)
    if options.staleness is not None:
        assert max(world.stalenesses) <= options.staleness, f"{options}: a token was {max(world.stalenesses)} versions old"
    if options.policy == "wait":
        assert "dropped:stale" not in counts
    if options.evaluate_every is not None:
        assert world.evaluated[-1] == topic.version
        assert world.evaluated[0] == 0, "whoever dies: the version that the run starts from is evaluated"
    assert world.core.live_blocks(0) == [], "every block is freed"
    return world, status


@pytest.mark.parametrize("policy", ["wait", "drop"])
@pytest.mark.parametrize("staleness", [0, 1, 2, 4, None])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_run_keeps_the_bound_and_ends(seed: int, staleness: int | None, policy: Policy) -> None:
    finish(Settings(seed=seed, staleness=staleness, policy=policy, requeue=seed == 2, drops=0.05 if seed == 3 else 0.0))


@given(
    seed=st.integers(0, 2**32),
    staleness=st.sampled_from([0, 1, 2, 4, None]),
    policy=st.sampled_from(["wait", "drop"]),
    batch=st.integers(1, 5),
    total=st.integers(1, 40),
    rollouts=st.integers(1, 4),
    load_chance=st.sampled_from([0.03, 0.1, 0.3, 1.0]),
    deaths=st.sampled_from([0.0, 0.01, 0.05]),
    slow=st.sampled_from([0.0, 0.3]),
    requeue=st.booleans(),
    drops=st.sampled_from([0.0, 0.1]),
    hand_backs=st.sampled_from([0.0, 0.05, 0.3]),
    evaluate_every=st.sampled_from([None, 1, 3]),
)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_run_keeps_the_bound_and_ends(**options: object) -> None:
    finish(Settings(hang=0.01, budget_groups=30, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["wait", "drop"])
@pytest.mark.parametrize("staleness", [0, 1, 2, None])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_run_whose_replicas_hand_back_what_they_have_keeps_the_bound_and_ends(seed: int, staleness: int | None, policy: Policy) -> None:
    world, status = finish(Settings(seed=seed, staleness=staleness, policy=policy, requeue=seed == 2, hand_backs=0.2, slow=0.3))
    assert world.handed_back > 10
    assert any(event.reason == "handed_back" for event in world.log.of("group"))
    assert status.topics[0].ledger["trained"] == world.settings.total


def test_the_measured_maximum_reaches_the_bound() -> None:
    """Else the runs above would say nothing: with the trainer behind, staleness grows to exactly k."""
    for staleness in (1, 2, 4):
        world, _ = finish(Settings(seed=5, staleness=staleness, total=60, deaths=0.0, hang=0.0, load_chance=0.1))
        assert max(world.stalenesses) == staleness


def test_drop_really_drops_and_faults_really_happen() -> None:
    dropped = late = deaths = 0
    reasons: set[str] = set()
    for seed in range(6):
        world, status = finish(Settings(seed=seed, staleness=1, policy="drop", deaths=0.03, hang=0.03))
        dropped += status.topics[0].ledger.get("dropped:stale", 0)
        late += status.topics[0].late
        deaths += world.deaths
        reasons |= {event.reason for event in world.log.events}
    assert dropped
    assert late
    assert deaths > 20
    assert {"lease_expired", "producer_died", "producer_replaced", "consumer_died", "stale"} <= reasons


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("ordered", property(lambda _: False)),
        ("min_version", lambda self, clock, ahead: 0 if self.staleness is None else max(0, clock - self.staleness)),
    ],
)
def test_a_looser_window_is_caught(name: str, mutant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation can fail: without the order of `wait`, or without floor(open / B), runs break the bound."""
    monkeypatch.setattr(WindowRules, name, mutant)
    broken = 0
    for seed in range(8):
        world = World(Settings(seed=seed, staleness=1, total=60, slow=0.3, load_chance=0.1))
        world.run()
        broken += max(world.stalenesses) > 1
    assert broken >= 2
