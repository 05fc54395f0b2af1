"""Parts of devices, sets that roles share, and what only a Ray cluster has."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncflow.config import ClusterSettings, ResourceSettings, RunConfig
from asyncflow.config.errors import SettingError
from asyncflow.config.explain.roles import processes
from asyncflow.config.resources import place
from asyncflow.config.rules import places
from asyncflow.launch.plan import device_count, worker_specs
from tests.config.recipes import MINIMAL, load_text

FOUR = ("cluster.kind=cuda", "cluster.devices=4")


def test_parts_of_devices_are_packed_and_whole_ones_stay_whole() -> None:
    resources = {
        "actor_forward": ResourceSettings(devices=0.5),
        "rollout": ResourceSettings(devices=2),
        "ref_forward": ResourceSettings(devices=0.25, workers=3),
    }
    spots = place(resources, ClusterSettings(kind="cuda", devices=4))
    assert [(spot.name, spot.devices, spot.share) for spot in spots] == [
        ("actor_forward-0", (0,), 0.5),
        ("rollout-0", (1, 2), 1.0),
        ("ref_forward-0", (0,), 0.25),
        ("ref_forward-1", (0,), 0.25),
        ("ref_forward-2", (3,), 0.25),
    ]


@pytest.mark.parametrize("part", [1 / 3, 0.1, 0.7])
def test_no_device_is_given_out_more_than_once_over(part: float) -> None:
    fit = 4 * int(1 / part + 1e-6)
    resources = {"rollout": ResourceSettings(devices=part, workers=fit)}
    spots = place(resources, ClusterSettings(kind="cuda", devices=4))
    assert all(sum(part for spot in spots if spot.devices == (device,)) <= 1 + 1e-6 for device in range(4))
    with pytest.raises(SettingError, match="has that much left"):
        place({"rollout": ResourceSettings(devices=part, workers=fit + 1)}, ClusterSettings(kind="cuda", devices=4))


def test_who_runs_beside_a_role_has_its_devices_in_turn_and_they_count_once(tmp_path: Path) -> None:
    config = load_text(tmp_path, MINIMAL, *FOUR, "resources.rollout={workers: 2, devices: 4}", "resources.scorer={beside: rollout, workers: 3}")
    spots = {spot.name: spot for spot in config.places()}
    assert [spots[f"scorer-{index}"].devices for index in range(3)] == [(0, 1), (2, 3), (0, 1)]
    assert [spots[f"scorer-{index}"].beside for index in range(3)] == ["rollout-0", "rollout-1", "rollout-0"]
    assert device_count(config) == 4
    visible = {spec.name: spec.environment["CUDA_VISIBLE_DEVICES"] for spec in worker_specs(config, "", None)}
    assert (visible["rollout-1"], visible["scorer-1"], visible["source-0"]) == ("2,3", "2,3", "")
    found = processes(config)
    assert found.placed == 4
    assert next(role for role in found.roles if role.name == "scorer").beside == "rollout"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("resources.rollout.devices=1.5",), r"rollout\.devices = 1\.5: with a point it is a part of one device"),
        (("resources.rollout.devices=2.0",), r"resources\.rollout\.devices=2"),
        (("resources.rollout.devices=0.0",), "between 0 and 1"),
        (("resources.scorer.beside=rolout",), r"there is no such role, did you mean 'rollout'\?.*resources\.scorer\.beside=rollout"),
        (("resources.scorer.beside=scorer",), "it is that role itself"),
        (("resources.scorer.beside=source", "resources.source.beside=trainer"), r"runs beside 'trainer' itself.*scorer\.beside=trainer"),
        (("resources.scorer={beside: rollout, devices: 1}",), r"scorer\.devices = 1 names others.*resources\.scorer\.devices=cpu"),
        (("launch=ray", "resources.rollout.devices=[0,1]"), r"given by number, not by index.*resources\.rollout\.devices=2"),
        (("cluster.address=10.0.0.1:6379",), r"it would be ignored\. Fix: launch=ray"),
        (("limits.place_s=0",), r"limits\.place_s = 0"),
        (("launch=slurm",), "'local', 'ray'"),
    ],
)
def test_what_contradicts_itself_is_refused_with_a_mend(tmp_path: Path, overrides: tuple[str, ...], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        load_text(tmp_path, MINIMAL, *FOUR, *overrides)


def test_without_the_package_the_launch_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "find_spec", lambda name: None)
    places.package(RunConfig())
    with pytest.raises(SettingError, match=r"launch = 'ray': it needs the package 'ray'.*pip install 'asyncflow\[ray\]'"):
        places.package(RunConfig(launch="ray"))
