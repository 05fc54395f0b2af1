"""Whether what was put was done, all of it, each once. It knows what was put and acknowledged, and believes neither side: the books of the controller
are compared with what producers and consumers wrote down.

What was on its way when its producer was killed may be there or not, but not twice, and not in part.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from tests.soak.content import ROWS, Key
from tests.soak.evidence import Evidence
from tests.soak.settings import PUT

TRAINED, DROPPED = "trained", "dropped:"
REASONS = {"shard_lost", "stale", "run_end"}  # for which the queue, or a trainer that cannot read its batch, may drop a group here
NOTICED_S = 15.0  # after a shard was killed everybody knows
MOST = 5  # examples of one problem


def judge(topic: str, found: Evidence) -> list[str]:
    """What is wrong; nothing is what a soak is for."""
    problems = [*_ledger(found), *_steps(found), *_batches(found), *_graded(found)]
    problems += _put(found) if topic == PUT else _asked(found)
    return [f"{topic}: {problem}" for problem in problems]


def dropped(found: Evidence) -> int:
    return sum(count for state, count in found.ledger.items() if state.startswith(DROPPED))


def _trained(found: Evidence) -> list[tuple[int, int, Key]]:
    """Rows (gid, row, key) of all committed steps."""
    return [row for step, rows in found.batches.items() if step < found.version for row in rows]


def _ledger(found: Evidence) -> list[str]:
    """Every group has ended, for a reason that we know."""
    problems = []
    if left := {state: count for state, count in found.ledger.items() if count and state != TRAINED and not state.startswith(DROPPED)}:
        problems.append(f"groups are left open: {left}")
    reasons = {state.removeprefix(DROPPED) for state, count in found.ledger.items() if count and state.startswith(DROPPED)}
    if unknown := reasons - REASONS:
        problems.append(f"groups were dropped for reasons that nobody here gives: {unknown}")
    if found.ledger.get(TRAINED, 0) != found.target:
        problems.append(f"the ledger has {found.ledger.get(TRAINED, 0)} trained groups, {found.target} were to be trained")
    return problems


def _steps(found: Evidence) -> list[str]:
    missing = [step for step in range(found.version) if step not in found.batches]
    return [f"steps {missing[:MOST]} were committed, and no trainer began to"] if missing else []


def _batches(found: Evidence) -> list[str]:
    """Trained: whole groups, each row once, and as many as the ledger says."""
    rows = _trained(found)
    problems = []
    times = Counter((gid, row) for gid, row, _ in rows)
    if twice := [row for row, count in times.items() if count > 1]:
        problems.append(f"{len(twice)} rows were trained twice: {twice[:MOST]}")
    if whose := [key for key, count in Counter(key for _, _, key in rows).items() if count > 1]:
        problems.append(f"{len(whose)} rows were trained twice, under other numbers of groups: {whose[:MOST]}")
    if wrong := [(gid, row, key) for gid, row, key in rows if key[3] != row]:
        problems.append(f"{len(wrong)} rows are in another one's place: {wrong[:MOST]}")
    groups = Counter(gid for gid, _ in times)
    if parts := [gid for gid, count in groups.items() if count != ROWS]:
        problems.append(f"{len(parts)} groups were trained in part: {parts[:MOST]}")
    if len(groups) != found.ledger.get(TRAINED, 0):
        problems.append(f"trainers have trained {len(groups)} groups, the ledger says {found.ledger.get(TRAINED, 0)}")
    blind = [row for row in times if row not in found.graded]
    if len(blind) > found.unnoted:
        problems.append(f"{len(blind)} trained rows were graded by nobody, at most {found.unnoted} can have gone without a note: {blind[:MOST]}")
    return problems


def _graded(found: Evidence) -> list[str]:
    """A row is done once by a stage, and again only where a shard took the result, or the row, with it."""
    again = []
    for row, times in found.graded.items():
        for before, after in pairwise(sorted(times)):  # of several graders
            if not any(before - NOTICED_S <= loss <= after for loss in found.losses):
                again.append(row)
    return [f"{len(again)} rows were graded twice, and no shard was lost meanwhile: {again[:MOST]}"] if again else []


def _put(found: Evidence) -> list[str]:
    """What writers were told is there is trained, or counted as dropped; what they were not told is there once or not at all."""
    problems = []
    trained = {gid: key[:3] for gid, _, key in _trained(found)}
    known = {gid: group for gid, group, _ in found.acknowledged}
    if len(known) < len(found.acknowledged) or len(set(known.values())) < len(known):
        problems.append("two puts were acknowledged under one number, or one put twice")
    if strange := [gid for gid, group in trained.items() if group not in found.tried]:
        problems.append(f"groups {strange[:MOST]} were trained, and nobody put them")
    if other := [gid for gid, group in trained.items() if known.get(gid, group) != group]:
        problems.append(f"groups {other[:MOST]} hold what was put under another number")
    lost = known.keys() - trained.keys()
    unsure = len(found.tried - set(known.values()) - set(trained.values()))
    problems += _accounted(found, len(lost), unsure)
    latest = max(found.losses, default=0.0) + NOTICED_S
    if late := [gid for gid, _, t in found.acknowledged if gid in lost and t > latest]:
        problems.append(f"groups {late[:MOST]} were put when the last shard had long been lost, and are not trained")
    return problems


def _asked(found: Evidence) -> list[str]:
    """What rollouts were given is trained, or counted as dropped."""
    problems = []
    rows = _trained(found)
    trained = {gid for gid, _, _ in rows}
    if strange := trained - found.prompted - found.pulled:
        problems.append(f"groups {sorted(strange)[:MOST]} were trained, and nobody asked for them")
    if other := [(gid, key) for gid, _, key in rows if key[:3] != (-1, 0, gid)]:
        problems.append(f"rows {other[:MOST]} are another group's")
    lost = found.pulled - trained
    unsure = len(found.prompted - found.pulled - trained)
    return problems + _accounted(found, len(lost), unsure)


def _accounted(found: Evidence, lost: int, unsure: int) -> list[str]:
    """The ledger names as many drops as groups are missing. `unsure`: that may have been there or not."""
    if lost <= dropped(found) <= lost + unsure:
        return []
    return [f"{lost} groups are missing, and of {unsure} more nobody knows, while the ledger has {dropped(found)} drops: {found.ledger}"]
