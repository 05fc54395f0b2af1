"""The recipe's file: found by name, and read once before Hydra reads it, for whatever Hydra would say about it says neither line nor fix."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from asyncflow.config.errors import SettingError, closest, did_you_mean

CONFIG = "config.yaml"  # in a recipe's folder
SELF = "_self_"  # in a `defaults:` list: this file


def find_recipe(recipe: str | Path) -> Path:
    """The YAML file of a recipe: the file itself, or `config.yaml` of a folder. Raises SettingError."""
    path = Path(recipe)
    file = path / CONFIG if path.is_dir() else path
    nothing = "there is nothing to read, so nothing was started"
    if file.is_file():
        if file.suffix == ".yaml":
            return file.resolve()
        advice = f"name a file that ends with .yaml, e.g. {file.with_suffix('.yaml').name}"
        rule = "a recipe is a YAML file NAME.yaml, or a folder with a config.yaml"
        raise SettingError(f"recipe {str(recipe)!r}", rule=rule, consequence="nothing was started", advice=advice)
    if path.is_dir():
        there = [found.name for found in sorted(path.glob("*.yaml"))]
        advice = f"name the file: {path / there[0]}" if there else f"name a folder that holds a {CONFIG}, or a YAML file"
        raise SettingError(f"recipe {str(recipe)!r}", rule=f"the folder holds no {CONFIG}", consequence=nothing, advice=advice)
    known = [str(found.parent) for found in sorted(Path("recipes").glob(f"*/{CONFIG}"))]
    near = closest(str(recipe), known + [str(found) for found in (path.parent.glob("*.yaml") if path.parent.is_dir() else ())])
    rule = f"there is no such file or folder with a {CONFIG}" + (f", did you mean {near!r}?" if near is not None else "")
    advice = f"take {near}" if near is not None else f"name a folder with a {CONFIG}, or a YAML file{f': {chr(44).join(known)}' if known else ''}"
    raise SettingError(f"recipe {str(recipe)!r}", rule=rule, consequence=nothing, advice=advice)


def check_yaml(path: Path, seen: frozenset[Path] = frozenset()) -> None:
    """Refuse what is no YAML, no mapping, or holds a key twice; the same for the files beside it that its `defaults:` list names."""
    root = _read(path)
    if root is None:
        return  # empty: the defaults as they are
    if not isinstance(root, yaml.MappingNode):
        rule = f"a recipe is a mapping of settings, this one is a {root.id}"
        advice = "write KEY: VALUE lines, e.g. staleness: 2"
        raise SettingError(f"{path.name}, line {root.start_mark.line + 1}", _shown(root), rule=rule, consequence="nothing was started", advice=advice)
    _refuse_twice(path, root, "", set())
    for name in _bases(root):
        base = path.with_name(f"{name.removesuffix('.yaml')}.yaml")
        if not base.is_file():
            there = [found.stem for found in path.parent.glob("*.yaml") if found != path]
            rule = f"there is no {base.name} beside {path.name}, {did_you_mean(name, there)}"
            consequence = "what it should hold would be missing, so nothing was started"
            raise SettingError("defaults", name, rule=rule, consequence=consequence, advice=f"remove {name!r} from the list, or make the file")
        if base not in seen:
            check_yaml(base, seen | {path})


def _read(path: Path) -> yaml.Node | None:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(
            f"recipe {path.name!r}", rule=f"it cannot be read ({error})", consequence="nothing was started", advice="make it a readable UTF-8 text"
        ) from None
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        raise _no_yaml(path, text, error) from None
    except yaml.YAMLError as error:  # a character that no YAML may hold
        rule = f"it is no YAML: {' '.join(str(error).split())}"
        raise SettingError(path.name, rule=rule, consequence="nothing of it can be read, so nothing was started", advice="remove it") from None


def _no_yaml(path: Path, text: str, error: yaml.MarkedYAMLError) -> SettingError:
    mark = error.problem_mark or error.context_mark
    assert mark is not None, "every error of the scanner and the parser has a place"
    lines = text.splitlines() or [""]
    number = min(mark.line, len(lines) - 1)
    begun = f", in what begins on line {error.context_mark.line + 1}" if error.context_mark is not None and error.context_mark.line != number else ""
    advice = f"mend line {number + 1}: nothing may be unclosed, entries of one mapping are indented alike, a colon has a space behind it"
    if "\t" in lines[number]:
        advice = f"put spaces for the tab in line {number + 1}: YAML indents with spaces only"
    return SettingError(
        f"{path.name}, line {number + 1}",
        lines[number].strip(),
        rule=f"it is no YAML: {error.problem or error.context}{begun}",
        consequence="nothing of the file can be read, so nothing was started",
        advice=advice,
    )


def _refuse_twice(path: Path, node: yaml.Node, where: str, seen: set[int]) -> None:
    """Parsers keep the last of two equal keys, or refuse them without saying which values they have."""
    if id(node) in seen:
        return  # an alias
    seen.add(id(node))
    first: dict[str, yaml.Node] = {}
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        name = str(key.value)
        full = f"{where}.{name}" if where else name
        if name in first:
            lines = first[name].start_mark.line + 1, key.start_mark.line + 1
            both = f"line {lines[0]}" if lines[0] == lines[1] else f"the lines {lines[0]} and {lines[1]}"
            raise SettingError(
                full,
                _shown(value),
                rule=f"the key stands twice in {path.name}, on {both}, before it as {_shown(first[name])!r}",
                consequence="one of the two would be ignored without a word, so nothing was started",
                advice=f"remove one of the two, e.g. keep {full}={_shown(value)}",
            )
        first[name] = value
        _refuse_twice(path, value, full, seen)
    for entry in node.value if isinstance(node, yaml.SequenceNode) else ():
        _refuse_twice(path, entry, where, seen)


def _bases(root: yaml.MappingNode) -> Iterator[str]:
    """Plain names of the `defaults:` list: files beside this one. Hydra's groups and packages are left to Hydra."""
    for key, value in root.value:
        if key.value == "defaults" and isinstance(value, yaml.SequenceNode):
            names = [entry.value for entry in value.value if isinstance(entry, yaml.ScalarNode)]
            yield from (name for name in names if name != SELF and name.replace("-", "_").removesuffix(".yaml").isidentifier())


def _shown(node: yaml.Node) -> str:
    """A value as the file spells it."""
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    text = str(node.start_mark.buffer or "")[node.start_mark.index : node.end_mark.index] if node.start_mark.buffer is not None else node.id
    return " ".join(text.replace("\0", "").split())
