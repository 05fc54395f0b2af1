"""What a task is: an endless stream of questions as token ids, held-out ones apart from it, and the score of an answer."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

from asyncflow.config.errors import SettingError, did_you_mean
from asyncflow.data.named import load_named

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from asyncflow.config import RunConfig
    from asyncflow.data.split import Split
    from asyncflow.rewards.verdict import Verdict


class Example(msgspec.Struct, frozen=True):
    """One item: what the model reads, what the scorer needs, what a perfect answer is."""

    question: str  # the compact text, before tokenisation
    prompt_ids: list[int]
    item: bytes  # the scorer's metadata, the column `item`
    answer_ids: list[int]  # a perfect answer, end-of-sequence included: for demonstrations only, never for scoring


class Task(Protocol):
    """Everything is a pure function of (settings, index): a source that is restarted puts the same prompts again."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast: ...

    def example(self, split: Split, index: int) -> Example:
        """Item `index` (0-based, endless) of a split. Splits share no question."""
        ...

    def prompt(self, gid: int) -> tuple[list[int], bytes]:
        """(prompt token ids, `item` bytes) of the training split: what the source puts."""
        ...

    def distinct(self, split: Split, count: int) -> list[Example]:
        """The first `count` different questions of a split."""
        ...

    def held_out(self, count: int) -> list[Example]:
        """`distinct` of the held-out split, for evaluation: the same for every seed of a run."""
        ...

    def demonstration(self, index: int) -> Example:
        """What a supervised warm start imitates, of the warm-start split; its answer need not be a perfect one."""
        ...

    def score(self, item: bytes, response_ids: Sequence[int]) -> float:
        """The task's own score in [0, 1] of a response as it was sampled (its end included, if it has one). Raises ValueError for a broken item."""
        ...


@runtime_checkable
class Judge(Protocol):
    """A task that also says why a score is what it is."""

    def verdict(self, item: bytes, response_ids: Sequence[int]) -> Verdict:
        """Of a response as `Task.score` gets it; the score is 1 for RIGHT and 0 for every other."""
        ...

    def close(self) -> None:
        """Free what judging holds."""
        ...


@runtime_checkable
class Counted(Protocol):
    """A task of finite data that also says how many of its rows are asked and why the others are not."""

    @property
    def counts(self) -> dict[str, int]: ...


@runtime_checkable
class Prepared(Protocol):
    """A task whose scorer takes time to come up. Where it does so in `score` after all, it says so to the row's clock (`rewards.row_clock`)."""

    def prepare(self) -> None:
        """Bring up what `score` and `verdict` need; called by a scorer before its first row. Raises RuntimeError, or TimeoutError, where
        that does not come up."""
        ...


@runtime_checkable
class Bounded(Protocol):
    """A task that ends what takes too long by itself."""

    @property
    def longest_s(self) -> float:
        """Most seconds that one call of `score` takes, without what the row's clock does not count."""
        ...


def score_deadline_s(config: RunConfig, task: Task) -> float:
    """Seconds after which a row's scoring is given up. Raises ValueError where the task's own limit would never be reached."""
    given_s = config.limits.reward_s
    if isinstance(task, Bounded) and given_s <= task.longest_s:
        rule = f"it must be above the {task.longest_s:g} s that {config.task.path} itself allows an answer"
        why = "one that hangs would cost its whole group instead of its own row, and a number of them the run"
        raise ValueError(f"limits.reward_s = {given_s:g}: {rule}; {why}. Fix: limits.reward_s={math.ceil(1.2 * task.longest_s)}")
    return given_s


def load_task(config: RunConfig) -> Task:
    """The task of a run: `task.path` names a factory, called with `task.options` and, unless they name one, the run's seed. Raises SettingError for
    options that it does not have, or needs."""
    options: dict[str, Any] = {"seed": config.run.seed, **config.task.options}
    make = load_named(config.task.path, "task.path")
    _refuse_options(config.task.path, make, options)
    task: Task = make(**options)
    return task


def _refuse_options(path: str, make: Callable[..., Any], options: dict[str, Any]) -> None:
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # compiled: the call itself tells
        return
    named = {parameter.name: parameter for parameter in parameters if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)}
    unknown = [] if any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters) else [key for key in options if key not in named]
    if unknown:
        key = f"task.options.{unknown[0]}"
        rule = f"{path} has no such option, {did_you_mean(unknown[0], named)}"
        raise SettingError(key, options[unknown[0]], rule=rule, consequence="the task cannot be made", advice=f"remove or rename {key}")
    missing = [name for name, parameter in named.items() if parameter.default is parameter.empty and name not in options]
    if missing:
        rule = f"{path} needs it, and it is not given"
        raise SettingError(f"task.options.{missing[0]}", rule=rule, consequence="the task cannot be made", advice=f"give task.options.{missing[0]}")
