"""Cost tables from files: what is refused, in which words, and that the stored ones are what they say."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import yaml

from asyncflow.config.errors import ConfigError
from asyncflow.sizing.draw import STORED, cut_mean, draw, fitted_mu
from asyncflow.sizing.lengths import response_lengths
from asyncflow.sizing.load import DEFAULT_TABLE, TABLES, load_costs, stored_tables
from tests.sizing.tables import changed, default

BROKEN = [
    ("decode.steps_s", 0.03, "did you mean 'step_s'"),
    ("batch_group", 8, "did you mean 'batch_groups'"),
    ("decode.step_s", 0, "> 0"),
    ("decode.step_s", "fast", "a number"),
    ("train.tokens_per_s", -1.0, "> 0"),
    ("pause.seconds", -6.0, "backwards"),
    ("pause.who", ["everybody"], "who"),
    ("decode.max_running", 8, "group_rows = 16"),
    ("split.rollout", 51, "Fix: split.rollout = 50"),
    ("split.trainer", 0, "nothing would be trained"),
    ("lengths.mean", 20000, "lengths.cap = 14336"),
    ("lengths.trace", "nowhere.npy", "no such file"),
    ("lengths.cap", 100, "lengths.cap = 100"),
    ("forward_rows", 0, ">= 1"),
    ("decode.step_s", 1e308, "<= 1e+12"),
    ("train.tokens_per_s", 1e-320, ">= 1e-12"),
    ("pause.seconds", 1e300, "<= 1e+12"),
    ("decode.max_running", 10**18, "<= 1e+09"),
]


def write(path: Path, key: str, value: object) -> Path:
    plain = yaml.safe_load(DEFAULT_TABLE.read_text())
    plain["lengths"]["trace"] = str(TABLES / plain["lengths"]["trace"])
    *parts, last = key.split(".")
    part = plain
    for name in parts:
        part = part[name]
    part[last] = value
    path.write_text(yaml.safe_dump(plain))
    return path


@pytest.mark.parametrize(("key", "value", "words"), BROKEN, ids=[f"{key}={value}" for key, value, _ in BROKEN])
def test_a_broken_table_is_refused_with_key_and_rule(tmp_path: Path, key: str, value: object, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        response_lengths(load_costs(write(tmp_path / "costs.yaml", key, value)))
    assert words in str(error.value)
    assert key.split(".")[-1] in str(error.value)


def test_the_messages_differ_from_one_another(tmp_path: Path) -> None:
    messages = set()
    for key, value, _ in BROKEN:
        with pytest.raises(ConfigError) as error:
            response_lengths(load_costs(write(tmp_path / "costs.yaml", key, value)))
        messages.add(str(error.value))
    assert len(messages) == len(BROKEN)


@pytest.mark.parametrize("text", ["a: [1", "- 1\n- 2", "", "\x00"])
def test_what_is_no_table_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "costs.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"costs\.yaml"):
        load_costs(path)


def test_a_name_that_is_nearly_a_stored_table_is_answered_with_it() -> None:
    with pytest.raises(ConfigError, match="published_64_devices_7b"):
        load_costs("published_64_device_7b")
    assert load_costs("published_64_devices_7b") == load_costs(DEFAULT_TABLE)


def test_a_table_written_out_and_read_again_is_equal(tmp_path: Path) -> None:
    path = tmp_path / "again.yaml"
    path.write_text(yaml.safe_dump(msgspec.to_builtins(default())))
    assert load_costs(path) == default()


def test_the_variants_differ_from_the_default_in_their_lengths_alone() -> None:
    assert stored_tables() == ["published_64_devices_7b", "published_64_devices_7b_mean_4k", "published_64_devices_7b_no_tail"]
    for name in stored_tables():
        costs = load_costs(name)
        assert changed(costs, name=default().name, source=default().source, lengths=default().lengths) == default()


@pytest.mark.parametrize(("name", "mean"), [("published_64_devices_7b", 1000), ("published_64_devices_7b_mean_4k", 4000)])
def test_a_stored_trace_is_what_its_law_says(name: str, mean: float) -> None:
    """Not bit by bit: another numpy may draw other numbers, which is why the trace is stored."""
    costs = load_costs(name)
    stored, drawn = response_lengths(costs).trace, draw(costs.lengths, STORED)
    assert len(stored) == STORED
    assert stored.min() >= 1
    assert stored.mean() == pytest.approx(mean, rel=0.02)
    assert np.quantile(stored, [0.1, 0.5, 0.9]) == pytest.approx(np.quantile(drawn, [0.1, 0.5, 0.9]), rel=0.03)
    uncut = np.log(stored[stored < costs.lengths.cap])
    assert uncut.std() < 1.5  # the cut takes the longest
    assert (stored == costs.lengths.cap).mean() == pytest.approx((drawn == costs.lengths.cap).mean(), rel=0.1)


@pytest.mark.parametrize(("mean", "sigma", "cap"), [(1000, 1.5, 14336), (4000, 1.5, 14336), (10, 0.5, 18), (5, 0.0, 18)])
def test_the_law_has_its_mean_after_the_cut(mean: float, sigma: float, cap: float) -> None:
    mu = fitted_mu(mean, sigma, cap)
    assert cut_mean(mu, sigma, cap) == pytest.approx(mean, rel=1e-6)
    drawn = np.minimum(np.exp(mu + sigma * np.random.default_rng(3).standard_normal(400_000)), cap)
    assert drawn.mean() == pytest.approx(mean, rel=0.02)


def test_every_row_has_one_length_and_the_trace_repeats() -> None:
    lengths = response_lengths(default())
    assert lengths.group(3) == [lengths.length_of(3, sample) for sample in range(16)] == lengths.trace[48:64].tolist()
    assert lengths.group(STORED // 16 + 3) == lengths.group(3)
