"""A consumer's sampler as it is declared, checked when the controller (or `explain`) starts: a wrong name found by a take would stop a run."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Collection
from functools import partial
from typing import Any, NamedTuple

from transfer_queue.messages import Consumer, Sampler, TopicSpec
from transfer_queue.samplers.candidates import Choose

ORDERS = ("in_order", "oldest_first", "newest_first", "same_version", "earliest_deadline")
RANKED = ("rank_aware", "length_balanced")
OPTIONS = {**{name: frozenset[str]() for name in ORDERS}, **{name: frozenset({"ranks", "order"}) for name in RANKED}}
MOST_RANKS = 1 << 16
REPLAYS = ("replay", "replay_mix")  # what others call a sampler
OWN = 'or name one of your own, "package.module:function"'


class Plan(NamedTuple):
    """A sampler, understood."""

    name: str  # as it was declared
    order: str  # one of ORDERS, or "own"
    choose: Choose | None = None  # of "own"
    ranks: int = 0  # 0: takes name no rank
    balanced: bool = False  # parts of ranks have about the same number of tokens


class SamplerError(ValueError):
    """A sampler that cannot be used: `key` below the consumer's `sampler`, its value, the rule that it breaks, and what to write instead."""

    def __init__(self, key: str, value: object, rule: str, fix: str, meant: str = "") -> None:
        """`meant`: the known word that is near, if one is."""
        self.key, self.value, self.rule, self.fix, self.meant = key, value, rule, fix, meant
        super().__init__(f"sampler.{key}={value!r}: {rule}; nothing could be taken in this order. {fix}")


def plan_of(consumer: Consumer, spec: TopicSpec) -> Plan:
    """Raises SamplerError for a sampler that is not known, or that the topic's window forbids."""
    plan = understood(consumer.sampling)
    window = spec.window
    if consumer.terminal and window.policy == "wait" and window.staleness is not None and plan.order in ("newest_first", "same_version"):
        fix = "Use oldest_first, set the window's policy to drop, or take the sampler for a consumer that is not terminal"
        raise SamplerError("name", plan.name, "the window's policy `wait` fixes the order of versions: the oldest version first", fix)
    if plan.order == "earliest_deadline" and window.staleness is None:
        rule = "without a staleness bound no group expires, so none has a deadline"
        raise SamplerError("name", plan.name, rule, "Use oldest_first, or set a bound")
    if plan.ranks and consumer.terminal and window.batch % plan.ranks:
        rule = f"a batch of {window.batch} groups cannot be dealt to them in equal counts"
        raise SamplerError("options.ranks", plan.ranks, rule, "Choose a batch that is a multiple of it")
    return plan


def understood(sampler: Sampler) -> Plan:
    """Of the declaration alone."""
    name, options = sampler.name, sampler.options
    if ":" in name:
        return Plan(name, "own", _own(name, options))
    if name in REPLAYS:
        rule = "what was trained before comes on top of a batch, whatever its order: it is no sampler"
        raise SamplerError("name", name, rule, "Declare it beside the sampler: Consumer(…, replay=Replay(groups=…, keep_groups=…))")
    if name not in OPTIONS:
        raise SamplerError("name", name, "no such sampler", *_instead(name, OPTIONS, OWN))
    for option in options:
        if option not in OPTIONS[name]:
            raise SamplerError(f"options.{option}", options[option], f"{name!r} has no such option", *_instead(option, OPTIONS[name]))
    if name in ORDERS:
        return Plan(name, name)
    ranks, order = options.get("ranks"), options.get("order", "oldest_first")
    if not isinstance(ranks, int) or isinstance(ranks, bool) or not 1 <= ranks <= MOST_RANKS:
        rule = f"the number of data-parallel ranks must be a whole number in [1, {MOST_RANKS}]"
        raise SamplerError("options.ranks", ranks, rule, f"Set it, as in {{name: {name}, options: {{ranks: 8}}}}")
    if not isinstance(order, str) or order in RANKED or (":" not in order and order not in ORDERS):
        raise SamplerError("options.order", order, "no such order", *_instead(str(order), ORDERS, OWN))
    inner = understood(Sampler(order))
    return Plan(name, inner.order, inner.choose, ranks, name == "length_balanced")


def _own(path: str, options: dict[str, Any]) -> Choose:
    module, _, attribute = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        fix = 'Write "package.module:function", importable where the controller runs'
        raise SamplerError("name", path, f"it cannot be imported ({error!r})", fix) from error
    if not callable(function):
        raise SamplerError("name", path, f"it is a {type(function).__name__}, not a function", "Name a function (ready, limit, **options) → places")
    try:
        signature = inspect.signature(function)
    except ValueError:  # of a callable that was not written in Python, and says nothing of itself
        return partial(function, **options)
    taken = [parameter.name for parameter in signature.parameters.values()][2:]
    any_option = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    for option in options:
        if option not in taken and not any_option:
            raise SamplerError(f"options.{option}", options[option], f"{path!r} has no such option", *_instead(option, taken))
    try:
        signature.bind(None, 1, **options)
    except TypeError as error:
        fix = "Write it as (ready, limit, **options) → places, and give the options that have no default"
        raise SamplerError("name", path, f"it cannot be called with (ready, limit) and the options {sorted(options)}: {error}", fix) from error
    return partial(function, **options)


def _instead(word: str, known: Collection[str], more: str = "") -> tuple[str, str]:
    """(what to write, the known word that is near or "")."""
    near = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.6)
    said = f"Did you mean {near[0]!r}?" if near else f"Known here: {', '.join(sorted(known)) or 'none'}"
    return f"{said} {more}".rstrip(), near[0] if near else ""
