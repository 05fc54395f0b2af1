"""Each broken configuration is refused with one message of its own, which names key, value, rule, consequence and a fix that mends it."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path

import pytest

from asyncflow.cli.main import main
from asyncflow.config.errors import SettingError
from asyncflow.config.explain.explanation import explain
from asyncflow.config.load import load
from tests.config.explain.broken import BROKEN, Broken, apply_fix, write
from tests.config.recipes import RUNNABLE

pytestmark = pytest.mark.tools

CONFIG = Path(__file__).parents[3] / "asyncflow/config"


def refused(path: Path, *overrides: str) -> SettingError:
    with pytest.raises(SettingError) as refusal:
        explain(load(path, list(overrides)))
    return refusal.value


Case = tuple[Broken, Path, SettingError]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """Each broken configuration, in a folder of its own, with its refusal."""
    found = {}
    for case in BROKEN:
        path = write(case, tmp_path_factory.mktemp("broken"))
        found[case.name] = case, path, refused(path, *case.overrides)
    return found


@pytest.mark.parametrize("name", [case.name for case in BROKEN])
def test_a_message_has_all_five_parts_and_the_fix_that_it_names_mends(name: str, cases: dict[str, Case]) -> None:
    case, path, error = cases[name]
    message = str(error)
    assert "\n" not in message
    assert message.startswith(f"{case.key}: " if case.value is None else f"{case.key} = {case.value}")
    assert case.rule in message
    assert message.endswith(f"; {error.consequence}. Fix: {error.mend}")
    assert min(len(error.rule), len(error.consequence), len(error.mend)) > 8
    assert shlex.join(error.fix) in error.mend
    assert error.fix or case.mend is not None
    assert explain(load(path, apply_fix(case, path, error))).length.steps > 0


def test_no_two_broken_configurations_get_the_same_message(cases: dict[str, Case]) -> None:
    messages = {str(error) for _, _, error in cases.values()}
    assert len(messages) == len(cases) == len(BROKEN) >= 20


@pytest.mark.parametrize("command", [["explain"], ["explain", "--json"], ["train"], ["train", "--dry-run"]])
def test_a_broken_configuration_gets_one_line_on_stderr_and_exit_code_2(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(BROKEN[0], tmp_path)
    assert main([*command, str(path), *BROKEN[0].overrides]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"asyncflow: {refused(path, *BROKEN[0].overrides)}\n"
    assert sorted(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("nowhere", "recipe 'nowhere': there is no such file or folder with a config.yaml"),
        ("folder", "the folder holds no config.yaml"),
        ("recipe.yml", "a recipe is a YAML file NAME.yaml"),
    ],
)
def test_a_recipe_that_is_not_there_is_refused_by_name(
    place: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/base.yaml").touch()
    (tmp_path / "recipe.yml").write_text(RUNNABLE)
    monkeypatch.chdir(tmp_path)
    assert main(["explain", place]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert ". Fix: " in said


def test_a_recipe_that_is_near_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recipes/sorting").mkdir(parents=True)
    (tmp_path / "recipes/sorting/config.yaml").write_text(RUNNABLE)
    monkeypatch.chdir(tmp_path)
    assert main(["explain", "recipes/sortin"]) == 2
    assert "did you mean 'recipes/sorting'?" in capsys.readouterr().err
    assert main(["explain", "recipes/sorting"]) == 0


def test_a_base_of_a_recipe_is_read_as_strictly(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(RUNNABLE + "staleness: 1\nstaleness: 2\n")
    (tmp_path / "recipe.yaml").write_text("defaults: [base, _self_]\nbatch_size: 8\n")
    error = refused(tmp_path / "recipe.yaml")
    assert (error.key, error.value) == ("staleness", "2")
    assert "base.yaml, on the lines 3 and 4" in error.rule


def test_a_yaml_alias_is_no_key_that_stands_twice(tmp_path: Path) -> None:
    text = "resources:\n  rollout: &one {workers: 1}\n  trainer: *one\n"
    (tmp_path / "recipe.yaml").write_text(RUNNABLE + text)
    assert load(tmp_path / "recipe.yaml").resources["trainer"].workers == 1


def test_every_refusal_of_the_configuration_is_one_that_must_name_all_its_parts() -> None:
    """`SettingError` cannot be made without them, so nothing in the package tells a user anything weaker."""
    raised = {
        ast.unparse(node.exc.func)
        for path in CONFIG.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and ast.unparse(node.exc.func).startswith(("Config", "Setting"))
    }
    assert raised == {"SettingError"}
