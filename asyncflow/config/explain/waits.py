"""Which parts can wait for which others, when, what it costs, and what ends the wait."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from asyncflow.config.root import RunConfig
from transfer_queue.controller.config import CoreConfig
from transfer_queue.controller.window import WindowRules
from transfer_queue.messages import TopicSpec


class Wait(msgspec.Struct, frozen=True):
    who: str
    when: str
    until: str


class Deadline(msgspec.Struct, frozen=True):
    key: str
    value: str
    then: str


class Waits(msgspec.Struct, frozen=True):
    stalls: list[Wait]
    deadlines: list[Deadline]
    warnings: list[str]  # settings that work, and probably not as they were meant


def waits(config: RunConfig, core: CoreConfig, topic: TopicSpec) -> Waits:
    stalls = [*_policy(config, topic), *_evaluation(config, core), *_pause(config), _nothing(core)]
    return Waits(stalls, _deadlines(config, core), list(_warnings(config, core)))


def _policy(config: RunConfig, topic: TopicSpec) -> Iterator[Wait]:
    rules = WindowRules(topic.window)
    k, longest = rules.staleness, config.rollout.response_width
    if k is None:
        yield Wait("rollout", "the bytes of open groups reach flow.budget_bytes", "a commit frees the bytes of its batch")
        return
    when = f"{rules.capacity} groups are open, or no replica has the version that the next one asks for"
    yield Wait("rollout", when, "the next commit and its weights")
    if k == 0:
        yield Wait("rollout", "its batch is generated: at staleness 0 generation and training alternate", "the trainer's weights of the next version")
    if rules.ordered:
        yield Wait(
            "trainer",
            f"one response lasts longer than k + 1 = {k + 1} steps: under `wait` nobody overtakes it",
            f"that response ends, at most {longest} tokens; its tokens count as progress, so no stall is reported meanwhile",
        )
    if rules.expires:
        yield Wait(
            "nobody for a straggler",
            f"a response lasts longer than {k} commits: its group is dropped and replaced, so long answers are trained less often",
            "see `dropped:stale` in the ledger, and its length beside that of what was trained (summary.json)",
        )


def _evaluation(config: RunConfig, core: CoreConfig) -> Iterator[Wait]:
    if not core.duties:
        return
    replicas, items = config.resources["rollout"].workers, config.evaluation.items
    when = f"a version is due for evaluation ({items} items): one of {replicas} replicas takes no prompt, finishes its own, evaluates"
    until = f"the evaluation ends; it counts as progress for {core.duty_s:g} s, then the stall limit runs"
    if replicas == 1:
        yield Wait("rollout and trainer", f"{when}; it is the only one, so training pauses", until)
    else:
        yield Wait("one replica", f"{when}; the others go on", until)
    yield Wait("all replicas", "version 0 is to be evaluated before anybody generates", "it is given to one of them")


def _pause(config: RunConfig) -> Iterator[Wait]:
    mode = config.rollout.pause_mode
    if mode == "wait":
        longest = f"its longest response ends, at most {config.rollout.response_width} tokens"
        yield Wait("a replica", "new weights are there: pause_mode `wait` finishes what runs first", longest)
    else:
        goes_on = "unfinished responses go on with the new weights" if mode == "keep" else "unfinished responses are aborted and resumed"
        yield Wait("a replica", "new weights are there: it loads them between two decode steps", f"the load ends; {goes_on}")


def _nothing(core: CoreConfig) -> Wait:
    until = "it ends with a report of every stage, the oldest open group and what it waits for"
    return Wait("the run", f"nothing makes progress for {core.stall_s:g} s", until)


def _deadlines(config: RunConfig, core: CoreConfig) -> list[Deadline]:
    limits = config.limits
    return [
        Deadline("limits.prepare_s", f"{limits.prepare_s:g} s", "models.*.prepare takes longer: the run ends"),
        Deadline("limits.start_s", f"{limits.start_s:g} s", "a process is not up and registered: the run ends"),
        Deadline("limits.lease_s", f"{core.lease_s:g} s", "a lease makes no progress: its groups or rows are handed out again (never the trainer's)"),
        Deadline("limits.heartbeat_s", f"{core.heartbeat_s:g} s", "a worker is not heard of: it counts as dead, what it held is handed out again"),
        Deadline("limits.restarts", f"{limits.restarts} in {limits.restart_window_s:g} s", "a worker dies more often: the run ends"),
        Deadline("limits.reward_s", f"{limits.reward_s:g} s", "scoring one row takes longer: its group is dropped(reward_timeout) and replaced"),
        Deadline("weights.group_timeout_s", f"{config.weights.group_timeout_s:g} s", "a receiver does not answer: the broadcast goes on without it"),
        Deadline("limits.stall_s", f"{core.stall_s:g} s", "nothing makes progress: the run ends with a stall report"),
        Deadline("limits.drain_s", f"{limits.drain_s:g} s", "a worker does not end after the stop: it is terminated, then killed"),
    ]


def _warnings(config: RunConfig, core: CoreConfig) -> Iterator[str]:
    rollout, replicas = config.rollout, config.resources["rollout"].workers
    if core.lease_s >= core.stall_s:
        yield (
            f"limits.lease_s = {core.lease_s:g} is not below limits.stall_s = {core.stall_s:g}: a hung worker ends the run before its work is handed "
            f"out again. Fix: limits.lease_s={core.stall_s / 2:g}"
        )
    if config.limits.reward_s >= core.lease_s:
        yield (
            f"limits.reward_s = {config.limits.reward_s:g} is not below limits.lease_s = {core.lease_s:g}: a row that is scored that long loses its "
            f"lease first and is scored twice. Fix: limits.reward_s={core.lease_s / 2:g}"
        )
    if rollout.progress_s >= core.lease_s:
        yield (
            f"rollout.progress_s = {rollout.progress_s:g} is not below limits.lease_s = {core.lease_s:g}: progress is told too late, and what "
            "takes longer is generated twice. Fix: rollout.progress_s=0.2"
        )
    if rollout.slots < rollout.samples_per_prompt:
        yield (
            f"rollout.slots = {rollout.slots} is below rollout.samples_per_prompt = {rollout.samples_per_prompt}: a group never fits whole, it is "
            f"generated in turns. Fix: rollout.slots={rollout.samples_per_prompt}"
        )
    elif rollout.slots % rollout.samples_per_prompt:
        idle = rollout.slots % rollout.samples_per_prompt
        yield (
            f"rollout.slots = {rollout.slots} is no multiple of rollout.samples_per_prompt = {rollout.samples_per_prompt}: prompts are pulled by "
            f"whole groups, so {idle} slots of each replica start idle. Fix: rollout.slots={rollout.slots - idle + rollout.samples_per_prompt}"
        )
    open_rows = None if config.staleness is None else (config.staleness + 1) * config.batch_size * rollout.samples_per_prompt
    if open_rows is not None and open_rows < replicas * rollout.slots:
        yield (
            f"{replicas} × {rollout.slots} slots are more than the {open_rows} rows of a full window: some are always idle. "
            f"Fix: a larger staleness or batch_size, or fewer slots"
        )
    if config.data.prompts_bound < config.batch_size:
        yield (
            f"data.prompts_bound = {config.data.prompts_bound} is below batch_size = {config.batch_size}: after a commit the source may not keep up. "
            f"Fix: data.prompts_bound={config.batch_size}"
        )
