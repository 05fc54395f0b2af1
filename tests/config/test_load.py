"""A recipe is defaults, then YAML, then the command line; whatever does not fit is refused with what was meant."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from asyncflow.config import RunConfig
from asyncflow.config.errors import ConfigError
from asyncflow.config.load import load
from tests.config.recipes import MINIMAL, load_text


def test_the_command_line_overrides_the_recipe_and_the_recipe_the_defaults(tmp_path: Path) -> None:
    config = load_text(tmp_path, MINIMAL + "staleness: 3\nbatch_size: 8\n", "staleness=4", "resources.rollout.workers=2")
    assert (config.staleness, config.batch_size, config.resources["rollout"].workers) == (4, 8, 2)
    assert config.rollout == RunConfig().rollout


@pytest.mark.parametrize(("text", "value"), [("staleness=0", 0), ("staleness=null", None), ("staleness=7", 7)])
def test_staleness_zero_and_null_are_different_values(tmp_path: Path, text: str, value: int | None) -> None:
    assert load_text(tmp_path, MINIMAL, text).staleness == value


def test_a_worker_reads_the_same_configuration_that_the_launcher_wrote(tmp_path: Path) -> None:
    config = load_text(tmp_path, MINIMAL, "staleness=null", "resources.rollout.devices=[0,1]", "cluster.devices=2", "cluster.kind=cuda")
    assert RunConfig.decode(config.encode()) == config


def test_interpolations_are_resolved(tmp_path: Path) -> None:
    config = load_text(tmp_path, MINIMAL + "evaluation:\n  items: ${batch_size}\n", "batch_size=64")
    assert config.evaluation.items == 64


def test_a_folder_with_a_config_is_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(MINIMAL)
    assert load(tmp_path) == load(tmp_path / "config.yaml")


def test_a_new_stage_takes_one_entry_in_yaml(tmp_path: Path) -> None:
    text = MINIMAL + (
        "stages:\n  values:\n    compute: my.code:make_values\n    inputs: [prompt_ids, response_ids]\n"
        "    outputs: {values: {dtype: float32, kind: per_token}}\n"
        "resources:\n  critic: {stages: [values]}\n"
    )
    config = load_text(tmp_path, text)
    assert config.stages_of("critic")[0].outputs[0].producer == "values"
    assert set(config.stages) > {"rollout", "reward", "train"}


def test_null_removes_a_default_stage_and_its_role(tmp_path: Path) -> None:
    overrides = ("stages.ref_forward=null", "resources.ref_forward=null", "stages.train.inputs=[response_ids,rewards,old_logprobs,advantages]")
    config = load_text(tmp_path, MINIMAL, *overrides)
    assert "ref_forward" not in config.stages
    assert all(place.role != "ref_forward" for place in config.places())


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("stalenes=4", ["stalenes", "staleness"]),
        ("rollout.slot=64", ["rollout.slot", "'slots'"]),
        ("+resources.rollout.worker=2", ["resources.rollout.worker", "'workers'"]),
        ("rollout.slots=many", ["rollout.slots", "'many'", "an integer"]),
        ("staleness=1.5", ["staleness", "1.5", "an integer or null"]),
        ("flow.policy=block", ["flow.policy", "'block'", "'wait', 'drop'"]),
        ("algorithm.betas=[0.9]", ["algorithm.betas", "length 2"]),
        ("+resources.x.workers=two", ["resources.x.workers", "'two'"]),
        ("staleness", ["staleness", "KEY=VALUE"]),
        ("staleness=[1", ["[1"]),
        ("resources.rolout.workers=2", ["resources.rolout", "'rollout'", "+resources.rolout.workers=2"]),
        ("stages.rewart.limit=3", ["stages.rewart", "'reward'", "+stages.rewart.limit=3"]),
        ("models.polcy.path=x", ["models.polcy", "'policy'", "+models.polcy.path=x"]),
        ("task.options.mots=5", ["task.options.mots", "known here: nothing", "+task.options.mots=5"]),
        ("~resources.rolout", ["resources.rolout", "'rollout'"]),
        ("resources.rollout.workers.x=3", ["resources.rollout.workers = 1", "no entries"]),
    ],
)
def test_a_wrong_override_is_refused_with_path_value_and_what_was_meant(tmp_path: Path, override: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_text(tmp_path, MINIMAL, override)
    for word in words:
        assert word in str(refusal.value)
    assert "Could not override" not in str(refusal.value)


def test_an_added_entry_may_be_overridden_and_is_not_what_is_blamed(tmp_path: Path) -> None:
    added = ("+task.options.most=5", "task.options.most=6")
    assert load_text(tmp_path, MINIMAL, *added).task.options == {"most": 6}
    with pytest.raises(ConfigError, match=r"^stages\.rewart\.limit = 3: stages\.rewart: there is no such entry"):
        load_text(tmp_path, MINIMAL, *added, "stages.rewart.limit=3")


def test_a_file_that_is_no_yaml_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "README.md").touch()
    with pytest.raises(ConfigError, match=r"README\.md': a recipe is a YAML file NAME\.yaml"):
        load(tmp_path / "README.md")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rollot: {slots: 8}", ["rollot", "'rollout'"]),
        ("models: {policy: {pth: x}}", ["models.policy.pth", "'path'"]),
        ("models: {policy: {path: 3}}", ["models.policy.path", "3", "a text or null"]),
        ("models: 3", ["models", "3", "mapping"]),
        ("rollout: [", ["recipe.yaml", "line 1"]),
        ("run: {name: '${nowhere}'}", ["nowhere"]),
        ("stages: {mine: {outputs: {x: {kind: scalar}}}}", ["stages.mine.outputs.x.dtype", "missing"]),
    ],
)
def test_a_wrong_recipe_is_refused_with_path_value_and_what_was_meant(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_text(tmp_path, text)
    for word in words:
        assert word in str(refusal.value)


def test_a_recipe_that_does_not_exist_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        load(tmp_path / "nowhere")


def test_a_loaded_configuration_cannot_be_changed(tmp_path: Path) -> None:
    config = load_text(tmp_path)
    with pytest.raises(AttributeError):
        config.staleness = 9  # type: ignore[misc]
    assert msgspec.structs.replace(config, staleness=9).staleness == 9
