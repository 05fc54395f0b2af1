"""What `rollout.options` may say; and the bookkeeping of requests, without vLLM."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from asyncflow.config.check import check_runnable
from asyncflow.config.errors import SettingError
from asyncflow.config.load import load as load_config
from asyncflow.contracts.rollout import Chunk, Request, Sampling
from asyncflow.contracts.weights import WeightsId
from asyncflow.engines.rollout.vllm.arguments import OWNER, Shape, forget_environment, set_environment
from asyncflow.engines.rollout.vllm.process import EngineGone, VllmProcess, _delta
from asyncflow.engines.rollout.vllm.settings import VllmSettings, vllm_settings
from asyncflow.engines.rollout.vllm.table import Delta, RequestTable
from asyncflow.engines.rollout.vllm.traces import SOCKETS, new_folder

WEIGHTS = [WeightsId("policy", 0, version) for version in range(5)]


def request(name: str = "r", budget: int = 10) -> Request:
    return Request(name, (3, 4, 5), Sampling(), seed=7, budget_left=budget)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tensor_paralel": 2}, "Fix: rollout.options.tensor_parallel=2"),
        ({"tensor_parallel": 0}, "at least 1"),
        ({"restarts": -1}, "at least 0"),
        ({"silent_s": 0.0}, "above 0"),
        ({"on_update": "drop"}, "'keep', 'recompute'"),
        ({"kv_cache_bytes": "many"}, "an integer or null"),
        ({"kv_cache_bytes": 0}, "at least 1; vLLM would not start. Fix: rollout.options.kv_cache_bytes=null"),  # to vLLM 0 is: not given
    ],
)
def test_a_wrong_option_is_refused_with_its_name_and_a_fix(options: dict[str, object], words: str) -> None:
    with pytest.raises(SettingError) as refusal:
        vllm_settings(options)
    assert words in str(refusal.value)
    assert "rollout.options." in str(refusal.value)


def test_what_an_engine_said_to_its_processes_is_forgotten_with_it_and_not_with_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    set_environment(VllmSettings(), "first")
    set_environment(VllmSettings(), "second")
    forget_environment("first")
    assert (os.environ[SOCKETS], os.environ[OWNER]) == ("second", str(os.getpid()))
    forget_environment("second")
    assert not {SOCKETS, OWNER} & os.environ.keys()


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder of temporary files whose name leaves room for sockets."""
    with tempfile.TemporaryDirectory(prefix="af") as folder:
        yield Path(folder)


@pytest.mark.parametrize(("name", "words"), [("nowhere", "takes no folder for its sockets"), ("x" * 60, "has too long a name")])
def test_without_a_place_for_its_sockets_vllm_is_not_started_and_the_fix_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    if name != "nowhere":
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))
    process = VllmProcess("rollout-0", Shape(tmp_path, "float32", 4, 32), VllmSettings(), (), RequestTable())
    with pytest.raises(EngineGone, match=rf"vLLM of rollout-0 did not start: .*{name} {words}.*TMPDIR"):
        process.start()
    process.close()
    assert not list(tmp_path.glob("*/*"))


def test_a_folder_whose_owner_was_killed_goes_with_the_next_start_and_no_other(monkeypatch: pytest.MonkeyPatch, short: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    own, held = new_folder()
    code = "from asyncflow.engines.rollout.vllm.traces import new_folder; print(new_folder()[0], flush=True); import time; time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(short)}) as owner:
        assert owner.stdout is not None
        killed = Path(owner.stdout.readline().strip())
        (killed / "socket").touch()
        os.close(new_folder()[1])  # not held any more: it goes like the killed one's
        assert {Path(own), killed} < set(short.iterdir())
        owner.kill()
    last, last_held = new_folder()
    assert set(short.iterdir()) == {Path(own), Path(last)}
    os.close(held)
    os.close(last_held)


def test_a_recipe_with_vllm_is_checked_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match=r"rollout.options.restarts = -1: it must be at least 0"):
        load_config("recipes/quickstart", ["rollout.engine=vllm", "+rollout.options.restarts=-1"])
    config = load_config("recipes/quickstart", ["rollout.engine=vllm", "+rollout.options.restarts=0"])
    monkeypatch.setattr("asyncflow.config.rules.engine.find_spec", lambda name: None)
    with pytest.raises(SettingError, match=r"rollout.engine = 'vllm': the package vllm is not installed.*make venv-vllm"):
        check_runnable(config)
    monkeypatch.setattr("asyncflow.config.rules.engine.find_spec", lambda name: object())
    check_runnable(config)


def test_the_page_names_every_option_and_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs/vllm.md").read_text()
    rows = [line.split(" | ")[0] for line in page.partition("## Settings")[2].partition("## New weights")[0].splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(VllmSettings.__struct_fields__)


def test_no_options_are_the_defaults_and_zero_restarts_are_a_value() -> None:
    assert vllm_settings({}) == VllmSettings()
    assert vllm_settings({"restarts": 0}).restarts == 0


def test_a_delta_of_two_versions_becomes_two_chunks_each_of_one() -> None:
    table = RequestTable()
    (attempt,) = table.add([request()], WEIGHTS[4])
    table.absorb(attempt, Delta([10, 11], [-1.0, -2.0], [(0, 4, 0)], None))
    table.absorb(attempt, Delta([12, 13, 14], [-3.0, -4.0, -5.0], [(0, 4, 0), (0, 5, 3)], "stop"))
    assert table.take(0.0) == [
        Chunk("r", [10, 11], [-1.0, -2.0], 4),
        Chunk("r", [12], [-3.0], 4),
        Chunk("r", [13, 14], [-4.0, -5.0], 5, "stop"),
    ]
    assert table.counts() == (0, 0)


def test_another_attempt_goes_on_where_the_last_one_was_with_another_seed_and_the_last_one_is_not_heard() -> None:
    table = RequestTable()
    asked = request()
    (first,) = table.add([asked], WEIGHTS[1])
    table.absorb(first, Delta([10, 11, 12], [-1.0] * 3, [(0, 1, 0)], None))
    assert table.without_token() == []
    (second,) = table.again(["r"], WEIGHTS[2])
    table.absorb(first, Delta([13], [-1.0], [(0, 1, 0)], "aborted"))
    assert table.without_token() == ["r"]
    assert second.request == Request("r", (3, 4, 5, 10, 11, 12), Sampling(), 7, 7)
    assert asked == request()
    assert second.seed != first.seed
    assert second.key != first.key
    table.absorb(second, Delta([20], [-2.0], [(0, 2, 0)], "length"))
    assert [chunk.finish for chunk in table.take(0.0)] == [None, "length"]


def test_an_end_without_tokens_is_a_chunk_of_the_version_that_came_last() -> None:
    table = RequestTable()
    (attempt,) = table.add([request()], WEIGHTS[3])
    table.absorb(attempt, Delta([], [], [(0, 3, 0)], "aborted"))
    assert table.known() == {"r"}
    assert table.take(0.0) == [Chunk("r", [], [], 3, "aborted")]
    assert table.known() == set()


def test_the_wait_for_chunks_is_guessed_from_the_gaps_between_them() -> None:
    now = 0.0
    table = RequestTable(clock=lambda: now)
    assert table.next_chunk_s() == math.inf
    (attempt,) = table.add([request(budget=1000)], WEIGHTS[0])
    for step in range(1, 200):
        now = step * 0.05
        table.absorb(attempt, Delta([5], [-1.0], [(0, 0, 0)], None))
        table.take(0.0)
    assert table.next_chunk_s() == pytest.approx(0.05, rel=0.1)
    now += 0.03
    assert table.next_chunk_s() == pytest.approx(0.02, rel=0.2)
    now += 50.0
    assert 0.0 < table.next_chunk_s() < 0.05
    assert table.silent_s() > 50.0
    table.absorb(attempt, Delta([5], [-1.0], [(0, 0, 0)], None))
    assert table.next_chunk_s() == 0.0


def test_a_request_that_vllm_refused_is_raised_where_chunks_are_fetched() -> None:
    table = RequestTable()
    table.add([request()], WEIGHTS[0])
    table.fail(RuntimeError("vLLM refused request 'r'"))
    with pytest.raises(RuntimeError, match="refused request 'r'"):
        table.take(5.0)


def test_a_step_is_a_token_that_comes_after_it_was_asked_for_or_there_is_nobody_to_make_one() -> None:
    table = RequestTable()
    assert table.stepped(0.0)
    table.await_step()
    assert table.stepped(0.0)
    (attempt,) = table.add([request()], WEIGHTS[0])
    assert not table.stepped(0.0)
    table.absorb(attempt, Delta([5], [-1.0], [(0, 0, 0)], None))
    assert table.stepped(0.0)
    table.await_step()
    assert not table.stepped(0.0)
    table.absorb(attempt, Delta([], [], [(0, 0, 0)], "aborted"))
    assert table.stepped(0.0)


def test_attempts_share_keys_and_values_only_where_they_start_with_the_same_weights() -> None:
    salts = []
    for epoch, version, digest in ((0, 3, "aa"), (1, 3, "bb"), (0, 4, "aa"), (0, 3, "aa")):
        (attempt,) = RequestTable().add([request()], WeightsId("policy", epoch, version, digest))
        salts.append(attempt.salt)
    assert salts[0] == salts[3]
    assert len(set(salts)) == 3


def completion(**changes: object) -> SimpleNamespace:
    """What vLLM says of a request: two more tokens."""
    spans = [SimpleNamespace(version="0.4", start=0), SimpleNamespace(version="1.2", start=1)]
    said = {"token_ids": [10, 11], "logprobs": SimpleNamespace(logprobs=[-1.0, -2.0]), "weight_versions": spans, "finish_reason": None}
    return SimpleNamespace(**(said | changes))


def test_what_vllm_says_is_taken_as_it_is_or_not_at_all() -> None:
    (attempt,) = RequestTable().add([request()], WEIGHTS[4])
    assert _delta(attempt, completion(), None) == Delta([10, 11], [-1.0, -2.0], [(0, 4, 0), (1, 2, 1)], None)
    state = SimpleNamespace(weight_version_starts=[("0.4", 0)])
    assert _delta(attempt, completion(weight_versions=None), state).starts == [(0, 4, 0)]
    assert _delta(attempt, completion(weight_versions=None), SimpleNamespace(weight_version_starts=[])).starts == [(0, 4, 0)]
    before_032 = completion()
    del before_032.weight_versions
    assert _delta(attempt, before_032, SimpleNamespace(), [(0, 4, 0), (0, 5, 3)]).starts == [(0, 4, 0), (0, 5, 3)]
    for logprobs, words in (([-1.0], "2 tokens came with 1 log-probabilities"), ([-1.0, math.nan], "not finite"), ([-1.0, -math.inf], "not finite")):
        with pytest.raises(RuntimeError, match=words):
            _delta(attempt, completion(logprobs=SimpleNamespace(logprobs=logprobs)), None)
    with pytest.raises(RuntimeError, match="ended as 'error'"):
        _delta(attempt, completion(finish_reason="error"), None)
