"""The same scenarios against TransferQueue 0.1.11 and against our `transfer_queue`: answers are equal by value and type, or other on purpose."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.verl.children import ROOT, run

PROGRAM = Path(__file__).with_name("compat_scenarios") / "answer.py"
sys.path.append(str(PROGRAM.parent))  # as the program sees its modules: the baseline has a folder `tests` of its own
from answer import SCENARIOS  # noqa: E402
from told import OURS  # noqa: E402

pytestmark = [pytest.mark.verl, pytest.mark.timeout(400)]
BASELINE = Path(sys.prefix) / "baseline"  # TransferQueue 0.1.11, which `make venv-verl` puts there


def answers(side: str, path: Path, limit_s: float) -> dict[str, Any]:
    done = run(str(PROGRAM), side, limit_s=limit_s, path=path)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    return answers("baseline", BASELINE, 240)


@pytest.fixture(scope="module")
def ours() -> dict[str, Any]:
    return answers("ours", ROOT, 120)


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in OURS])
def test_our_queue_answers_as_transferqueue_does(name: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert theirs[name][0] != "RAISED", theirs[name]  # a scenario that says nothing
    assert ours[name] == theirs[name]


@pytest.mark.parametrize("name", OURS)
def test_our_queue_answers_otherwise_where_the_docs_say_so(name: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours[name] == OURS[name]
    assert theirs[name] != OURS[name]


def test_every_other_answer_is_explained() -> None:
    page = (ROOT / "docs" / "verl.md").read_text()
    assert [name for name in OURS if f"`{name}`" not in page] == []
