"""The numbers of an explanation are those that the run's own parts act on."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from safetensors.numpy import save_file

from asyncflow.config import RunConfig
from asyncflow.config.check import check
from asyncflow.config.explain.admission import admission, most_open
from asyncflow.config.explain.explanation import explain
from asyncflow.config.explain.memory import parameters
from asyncflow.config.explain.schedule import due
from asyncflow.config.explain.storage import joined
from asyncflow.config.explain.text import draw
from asyncflow.config.load import load
from asyncflow.config.typed import typed
from asyncflow.flow.bytes import group_bytes
from asyncflow.flow.topic import topic_spec
from transfer_queue.controller.desired import Desired
from transfer_queue.controller.duties import Duties, Duty
from transfer_queue.controller.members import Members
from transfer_queue.controller.runtime import Runtime
from transfer_queue.controller.window import WindowRules
from transfer_queue.messages import Column, Consumer, Event, TopicSpec, Window

SPLIT = Path(__file__).parents[1] / "recipe_64_devices.yaml"


def configured(*overrides: str) -> RunConfig:
    """The runnable recipe with overrides, checked; without Hydra, for whose work others test and these would wait."""
    plain = msgspec.to_builtins(RunConfig()) | {"task": {"path": "asyncflow.data.number_sorting:NumberSorting"}}
    plain["models"]["policy"]["path"] = "/models/tiny"
    for override in overrides:
        key, _, value = override.partition("=")
        *parents, last = key.split(".")
        node = plain
        for parent in parents:
            node = node[parent]
        node[last] = yaml.safe_load(value)
    config = typed(plain)
    check(config)
    return config


class Deaf:
    """An observer of events that nobody reads."""

    def on_event(self, event: Event) -> None: ...


def spec(window: Window) -> TopicSpec:
    return TopicSpec("policy", "policy", (Column("x", "int8", "scalar", "s"),), (Consumer("train", ("x",), unit="group", terminal=True),), window)


@given(st.integers(1, 40), st.none() | st.integers(0, 9), st.integers(1, 5000), st.integers(1, 50), st.sampled_from(["wait", "drop"]))
def test_permits_are_where_the_controller_stops_to_admit(batch: int, staleness: int | None, room: int, size: int, policy: str) -> None:
    budget = max(room, batch) * size + size // 2
    window = Window(batch, staleness, policy, budget, size)  # type: ignore[arg-type]
    found, rules = admission(spec(window)), WindowRules(window)
    opened = 0
    while rules.has_permit(opened):  # one group after the other, as the controller does
        opened += 1
    assert found.permits == opened == most_open(rules)
    assert found.byte_groups == budget // size
    assert found.capacity_groups == (None if staleness is None else (staleness + 1) * batch)
    assert found.bound_by == ("window" if found.capacity_groups is not None and found.capacity_groups <= found.byte_groups else "bytes")


@given(st.integers(1, 40), st.integers(0, 30))
def test_the_worked_table_is_the_rule_of_the_window(batch: int, staleness: int) -> None:
    window = Window(batch, staleness, budget_bytes=1 << 30, group_bytes=64)
    found, rules = admission(spec(window)), WindowRules(window)
    assert found.worked_at is not None
    assert (found.worked[0].open_from, found.worked[0].open_to) == (0, batch - 1)
    assert found.worked[-1].open_to == (staleness + 1) * batch - 1
    for line in found.worked:
        for count in (line.open_from, line.open_to):
            assert rules.min_version(found.worked_at, count) == line.version
            assert line.version == found.worked_at - staleness + count // batch  # decision 4, by hand
    assert found.worked[-1].version == found.worked_at  # never above the trainer's


def test_the_rules_are_said_with_the_numbers_of_the_run() -> None:
    found = explain(configured("staleness=3", "batch_size=16", "flow.policy=drop")).admission
    assert found.min_version == "v − 3 + ⌊open / 16⌋, never below 0"
    assert found.reissue == "the larger of its own min_version and v − 3 + ⌊(open − 1) / 16⌋"
    assert "at v = 10 with 64 groups open" in found.reissue_example
    assert found.reissue_example.endswith("from version 10 or newer")
    assert "dropped at the commit that makes version (its own + 4); the source's next prompt takes its place" in found.expiry


def test_staleness_0_and_null_are_explained_as_what_they_are() -> None:
    strict, free = (explain(configured(f"staleness={value}")) for value in ("0", "null"))
    assert (strict.admission.capacity_groups, free.admission.capacity_groups) == (32, None)
    assert [line.version for line in strict.admission.worked] == [strict.admission.worked_at]
    assert free.admission.worked == []
    assert free.admission.bound_by == "bytes"
    assert strict.bit_for_bit.equal
    assert [condition.name for condition in free.bit_for_bit.conditions if not condition.met] == ["staleness is 0"]
    assert any("alternate" in wait.when for wait in strict.waits.stalls)


@given(st.integers(1, 300), st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_the_versions_to_evaluate_are_those_that_the_controller_finds_due(steps: int, every: int) -> None:
    runtime, members = Runtime(Deaf(), lambda: 0.0), Members()
    duties = Duties([Duty("evaluate", "rollout", "policy", every)], runtime, members, Desired(runtime, members))
    (state,) = duties._states
    found = []
    for version in range(steps + 1):
        duties.published("policy", version)
        if state.due is not None:  # somebody does it at once
            found.append(version)
            state.due, state.covered = None, version
    duties.final("policy", steps)
    found += [] if state.due is None else [state.due]
    planned = due(every, steps, last=True)
    assert planned.count == len(found)
    assert planned.versions[0] == 0
    assert planned.versions[-1] == found[-1] == steps
    assert set(planned.versions) <= set(found)
    assert planned.left_out == len(found) - len(planned.versions)


def test_without_evaluation_none_is_planned() -> None:
    found = explain(configured("evaluation.every=null"))
    assert (found.schedule.evaluation.count, found.schedule.evaluation.versions) == (0, [])
    assert not any("evaluat" in wait.when for wait in found.waits.stalls)


def test_a_single_replica_that_evaluates_pauses_training_and_two_do_not() -> None:
    one, two = (explain(configured(f"resources.rollout.workers={count}")).waits.stalls for count in (1, 2))
    assert any("training pauses" in wait.when for wait in one)
    assert not any("training pauses" in wait.when for wait in two)


@pytest.mark.parametrize(("policy", "words"), [("wait", "longer than k + 1 = 3 steps"), ("drop", "longer than 2 commits")])
def test_each_policy_says_when_it_stalls(policy: str, words: str) -> None:
    stalls = explain(configured(f"flow.policy={policy}")).waits.stalls
    assert sum(words in wait.when for wait in stalls) == 1


def test_bytes_of_a_group_are_the_sum_of_its_columns_and_what_the_window_reserves() -> None:
    config = configured()
    found = explain(config)
    samples = found.memory.samples
    assert samples.group == sum(samples.columns.values()) == group_bytes(config) == topic_spec(config).window.group_bytes
    assert [column.name for column in found.storage.columns if column.shared] == ["prompt_ids", "item"]
    assert {column.name: column.group_bytes for column in found.storage.columns} == samples.columns
    assert samples.columns["prompt_ids"] == 64 * 4  # once, though the group has 8 rows
    assert samples.columns["response_ids"] == 8 * 64 * 4
    assert found.storage.schema == topic_spec(config).digest()


def test_the_largest_staleness_that_the_budget_holds_is_just_that() -> None:
    fits = explain(configured()).memory.samples.staleness_fits
    for staleness, bound in ((fits, "window"), (fits + 1, "bytes")):
        assert explain(configured(f"staleness={staleness}")).admission.bound_by == bound


def test_a_short_last_batch_is_seen() -> None:
    found = explain(configured("run.steps=null", "run.total_groups=70")).length
    assert (found.steps, found.groups, found.rows, found.batch_groups, found.last_batch_groups) == (3, 70, 560, 32, 6)


def test_on_cpus_a_device_is_a_worker_that_computes_with_a_model() -> None:
    assert explain(configured()).processes.rate_divisor == 4  # rollout, actor_forward, ref_forward, trainer: those that `size` splits
    assert explain(configured("resources.rollout.workers=3", "resources.scorer.workers=2")).processes.rate_divisor == 6


def test_the_split_of_64_devices_is_explained_and_what_train_refuses_is_said() -> None:
    found = explain(load(SPLIT))
    assert (found.processes.devices, found.processes.placed, found.processes.rate_divisor) == (64, 64, 64)
    rollout = next(role for role in found.processes.roles if role.name == "rollout")
    assert (rollout.workers, {len(devices) for devices in rollout.devices}) == (13, {4})
    assert found.processes.slots == 13 * 256
    refused = "\n".join(found.refused)
    for key in ("resources.trainer.workers = 8", "resources.rollout.devices = 52", "cluster.kind = 'npu'", "models.policy.dtype", "task.path"):
        assert key in refused
    assert all(". Fix: " in reason for reason in found.refused)


def test_parameters_are_counted_from_the_headers_of_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    assert parameters(folder) is None
    save_file({"a": np.zeros((3, 4), dtype=np.float16), "b": np.zeros((), dtype=np.float32)}, folder / "one.safetensors")
    save_file({"c": np.zeros(7, dtype=np.int8)}, folder / "two.safetensors", metadata={"format": "np"})
    assert parameters(folder) == 12 + 1 + 7
    found = explain(configured(f"models.policy.path={folder}")).memory
    assert [model.bytes for model in found.models] == [80, 80]  # computed in float32
    assert found.weights.caches == ["publisher-0", "rollout-0", "actor_forward-0"]
    assert found.weights.bytes == (2 + 1 + 1) * 80
    assert found.weights.mapping == []
    (folder / "two.safetensors").write_bytes(b"nonsense")
    assert parameters(folder) is None


BY_DEVICE = ("cluster.kind=cuda", "cluster.devices=3", "resources.publisher.devices=1", "weights.backend=nccl", "resources.rollout.workers=2")


@pytest.mark.parametrize(
    ("overrides", "caches", "mapping"),
    [
        (["weights.transport=pull"], ["publisher-0"], ["rollout-0", "actor_forward-0"]),
        ([*BY_DEVICE, "resources.rollout.devices=2"], ["publisher-0", "rollout-0", "rollout-1"], ["actor_forward-0"]),
        ([*BY_DEVICE, "weights.backend=auto"], ["publisher-0", "rollout-0", "rollout-1", "actor_forward-0"], []),
        ([*BY_DEVICE, "weights.transport=pull"], ["publisher-0"], ["rollout-0", "rollout-1", "actor_forward-0"]),
    ],
)
def test_who_pulls_maps_the_publishers_slots_and_has_none_of_its_own(
    overrides: list[str], caches: list[str], mapping: list[str], tmp_path: Path
) -> None:
    save_file({"a": np.zeros(20, dtype=np.float32)}, tmp_path / "one.safetensors")
    found, shown = explain(configured(f"models.policy.path={tmp_path}", *overrides)), io.StringIO()
    assert (found.memory.weights.caches, found.memory.weights.mapping) == (caches, mapping)
    assert found.memory.weights.bytes == (2 + len(caches) - 1) * 80
    draw(found, Console(file=shown, width=400))
    text = shown.getvalue()
    assert f"{len(caches)} cache{'s' * (len(caches) > 1)} of slots × the model" in text
    assert ", ".join(["publisher-0 × 2", *(f"{name} × 1" for name in caches[1:])]) in text
    doubled = explain(configured(f"models.policy.path={tmp_path}", "weights.receiver_slots=2", *overrides))
    assert doubled.memory.weights.bytes == len(caches) * 2 * 80
    assert ("the publisher's slots, mapped" in text) == bool(mapping)
    assert ("on the CPU, which no nccl broadcast reaches" in text) == ("actor_forward-0" in mapping and "rollout-0" in caches)


def test_what_is_not_known_is_null_and_never_0() -> None:
    found = explain(configured())
    assert [model.parameters for model in found.memory.models] == [None, None]
    assert found.memory.weights.bytes is None


@pytest.mark.parametrize(
    ("override", "condition"),
    [
        ("resources.trainer.threads=2", "one thread in every worker"),
        ("algorithm.control=shuffle_rewards", "nothing depends on the order of arrival"),
        ("stages.ref_forward.unit=row", "models see whole groups"),
        ("rollout.engine=asyncflow.engines.rollout.factory:make_rollout_engine", "the embedded rollout engine"),
        ("stages.advantage.compute=asyncflow.stages.reward:make_reward", "only stages that the synchronous loop has too"),
    ],
)
def test_what_breaks_equality_bit_for_bit_is_named(override: str, condition: str) -> None:
    found = explain(configured("staleness=0", override)).bit_for_bit
    assert not found.equal
    assert [entry.name for entry in found.conditions if not entry.met] == [next(e.name for e in found.conditions if e.name.startswith(condition))]


def test_threads_of_workers_without_a_model_do_not_matter() -> None:
    assert explain(configured("staleness=0", "resources.scorer.threads=2")).bit_for_bit.equal


@pytest.mark.parametrize("source", ["forward", "behaviour", "recompute"])
def test_the_denominator_has_one_source_with_its_column(source: str) -> None:
    found = explain(configured(f"algorithm.old_logprobs={source}")).old_logprobs
    by = {"forward": ("old_logprobs", "stage actor_forward, role actor_forward"), "behaviour": ("rollout_logprobs", "stage rollout, role rollout")}
    assert (found.column, found.computed_by) == by.get(source, (None, "stage train, role trainer"))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("limits.lease_s=90", "limits.lease_s = 90 is not below limits.stall_s = 60"),
        ("rollout.progress_s=30", "rollout.progress_s = 30 is not below limits.lease_s = 30"),
        ("limits.reward_s=40", "limits.reward_s = 40 is not below limits.lease_s = 30"),
        ("rollout.slots=12", "4 slots of each replica start idle"),
        ("rollout.slots=4", "a group never fits whole"),
        ("data.prompts_bound=8", "data.prompts_bound = 8 is below batch_size = 32"),
    ],
)
def test_what_works_and_is_probably_not_meant_is_said_with_a_fix(override: str, words: str) -> None:
    (warning,) = explain(configured(override)).waits.warnings
    assert words in warning
    fix = warning.partition("Fix: ")[2]
    assert explain(configured(override, fix)).waits.warnings == []


def test_names_of_many_workers_take_few_words() -> None:
    assert joined(["controller", "shard-0", "rollout-0", "rollout-1", "rollout-2"]) == "controller, shard-0, rollout-0 … rollout-2"


