"""Import paths are looked up by reading: nothing is imported, and what reading cannot tell is not refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from asyncflow.data.lookup import missing

MODULE = """
import os.path as paths
from json import dumps as write, loads
CONSTANT: int = 3
first, (second, *rest) = 1, (2, 3)
class Loss: ...
async def later(): hidden = 1
if CONSTANT:
    def inside(): ...
else:
    otherwise = 1
try:
    import absent_package
except ImportError:
    absent_package = None
for turn in (): looped = 1
with open(__file__) as file: opened = 1
match CONSTANT:
    case 3:
        matched = 1
raise RuntimeError("this module must never run")
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "looked_up"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('nor must its package')\n")
    (folder / "things.py").write_text(MODULE)
    (folder / "stars.py").write_text("from json import *\n")
    (folder / "lazy.py").write_text("def __getattr__(name): return name\n")
    (folder / "made.py").write_text("for name in 'ab': globals()[name] = 1\n")
    (folder / "broken.py").write_text("def (\n")
    (folder / "inner/__init__.py").write_text("__path__.append('elsewhere')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


BOUND = ["paths", "write", "loads", "CONSTANT", "first", "second", "rest", "Loss", "later", "inside", "otherwise"]
BOUND += ["absent_package", "turn", "looped", "file", "opened", "matched"]


@pytest.mark.parametrize("name", BOUND)
def test_a_name_that_is_bound_at_the_top_level_is_there(package: Path, name: str) -> None:
    assert missing(f"looked_up.things:{name}") is None
    assert "looked_up" not in sys.modules


@pytest.mark.parametrize("name", ["hidden", "dumps", "os", "Los", "Loss.x"])
def test_a_name_that_is_not_is_missing(package: Path, name: str) -> None:
    lost = missing(f"looked_up.things:{name}")
    assert lost is not None
    assert f"module 'looked_up.things' has no {name!r}" in lost.why
    assert name != "Los" or lost.meant == "looked_up.things:Loss"


@pytest.mark.parametrize("path", ["looked_up.stars:x", "looked_up.lazy:x", "looked_up.made:x", "looked_up.broken:x", "looked_up.inner.other:x"])
def test_what_reading_cannot_tell_is_taken_to_be_there(package: Path, path: str) -> None:
    assert missing(path) is None


@pytest.mark.parametrize(
    ("path", "why", "meant"),
    [
        ("looked_up.thing:Loss", "there is no module 'looked_up.thing', did you mean looked_up.things?", "looked_up.things:Loss"),
        ("looked_up.things.deeper:Loss", "'looked_up.things' is no package", None),
        ("no_such_package:x", "there is no module 'no_such_package'", None),
        (".relative:x", "no name of a module", None),
        ("looked_up.things:", "does not name module and name", None),
        ("looked_up.things", "does not name module and name", None),
    ],
)
def test_a_module_that_is_not_there_is_missing_and_a_near_one_is_named(package: Path, path: str, why: str, meant: str | None) -> None:
    lost = missing(path)
    assert lost is not None
    assert why in lost.why
    assert lost.meant == meant


@pytest.mark.parametrize("path", ["math:sin", "json:dumps", "numpy:float32", "torch.nn:Linear", "looked_up:things"])
def test_compiled_built_in_and_lazy_modules_are_taken_as_they_are(package: Path, path: str) -> None:
    assert missing(path) is None
