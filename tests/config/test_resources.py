"""Devices are given out to workers: all of them, each to one worker, explicit indexes as named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncflow.config import ClusterSettings, ResourceSettings
from asyncflow.config.load import load
from asyncflow.config.resources import place

RECIPE = Path(__file__).with_name("recipe_64_devices.yaml")


def test_52_2_2_8_is_a_recipe() -> None:
    config = load(RECIPE)
    places = config.places()
    devices = {role: [place.devices for place in places if place.role == role] for role in config.resources}
    assert [len(share) for share in devices["rollout"]] == [4] * 13
    assert [sum(map(len, devices[role])) for role in ("rollout", "actor_forward", "ref_forward", "trainer")] == [52, 2, 2, 8]
    assert devices["trainer"] == [(index,) for index in range(56, 64)]
    assert sorted(device for shares in devices.values() for share in shares for device in share) == list(range(64))
    assert devices["source"] == [()]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=5), st.integers(0, 3))
def test_every_device_is_given_to_at_most_one_worker(shapes: list[tuple[int, int]], spare: int) -> None:
    resources = {f"role{index}": ResourceSettings(workers=workers, devices=workers * each) for index, (workers, each) in enumerate(shapes)}
    total = sum(workers * each for workers, each in shapes)
    places = place(resources, ClusterSettings(kind="cuda", devices=total + spare))
    given_out = [device for spot in places for device in spot.devices]
    assert sorted(given_out) == list(range(total))
    assert len({spot.name for spot in places}) == len(places) == sum(workers for workers, _ in shapes)


@pytest.mark.parametrize(
    ("devices", "workers", "words"),
    [((0, 9), 1, "device 9"), (5, 1, "only 4 devices"), (3, 2, "3 devices do not divide among 2 workers"), (0, 1, "0 devices")],
)
def test_devices_that_cannot_be_placed_are_refused(devices: int | tuple[int, ...], workers: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        place({"rollout": ResourceSettings(workers=workers, devices=devices)}, ClusterSettings(kind="cuda", devices=4))


def test_two_roles_cannot_name_one_device() -> None:
    resources = {"rollout": ResourceSettings(devices=(0, 1)), "trainer": ResourceSettings(devices=(1,))}
    with pytest.raises(ValueError, match=r"trainer\.devices = \[1\]: it names device 1, which rollout has"):
        place(resources, ClusterSettings(kind="cuda", devices=2))
