"""The run's own lines: how far it is, reward and accuracy, staleness, permits and groups, the queue in front of each stage, the pace."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from asyncflow.flow.window import window
from asyncflow.observe.live.marks import duration, progress_bar, sparkline
from asyncflow.observe.live.snapshot import LATE_S, Snapshot
from transfer_queue.controller.window import WindowRules

OPEN_STATES = ("admitted", "generating", "complete", "leased")
SPARK_CELLS, ACCURACY_CELLS = 24, 8
LABEL_CELLS = 9
SHORT_REASON = 20  # characters that fit beside the run's name


def head(snapshot: Snapshot) -> Table:
    """Which run, and when it ends."""
    config, state, dot = snapshot.config, snapshot.state, snapshot.marks.dot
    bound = "no staleness bound" if config.staleness is None else f"staleness {snapshot.marks.at_most} {config.staleness} ({config.flow.policy})"
    elapsed_s = state.until_s if snapshot.ended is not None else state.elapsed_s()
    times = f"{duration(elapsed_s)} elapsed" if elapsed_s is not None else "starting"
    if snapshot.ended is not None:
        said = snapshot.ended if len(snapshot.ended) <= SHORT_REASON else "failed"  # the summary below tells it whole
        times = f"{said} {dot} {times}" if elapsed_s is not None else said
    elif (left_s := state.left_s(config.total_steps)) is not None:
        times += f" {dot} {duration(left_s)} left"
    table = Table.grid(expand=True)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column(no_wrap=True, justify="right")
    table.add_row(Text.assemble((config.run.name, "bold"), f" {dot} {bound}"), Text(times))
    return table


def facts(snapshot: Snapshot, width: int) -> Table:
    """Label and value, a line each; long values go on below."""
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(no_wrap=True, style="bright_black", width=LABEL_CELLS)
    table.add_column(overflow="fold", ratio=1)
    table.add_row("version", _version(snapshot, width))
    for label, value in (
        ("reward", _reward(snapshot)),
        ("accuracy", _accuracy(snapshot)),
        ("staleness", _staleness(snapshot)),
        ("pace", _pace(snapshot)),
        ("groups", _groups(snapshot)),
        ("queue", _queue(snapshot)),
    ):
        if value:
            table.add_row(label, value if isinstance(value, Text) else flowed(value, width - LABEL_CELLS - 2, snapshot.marks.dot))
    return table


def warnings(snapshot: Snapshot) -> list[Text]:
    """What is not as it should be."""
    found = []
    status, age_s, limit_s = snapshot.status, snapshot.status_age_s, snapshot.config.limits.stall_s
    if snapshot.ended is None:
        if snapshot.problem is not None or (age_s is not None and age_s > LATE_S):
            old = f"the controller's last status is {duration(age_s)} old" if age_s is not None else "the controller gives no status"
            found.append(f"{old}{f': {snapshot.problem}' if snapshot.problem is not None else ''}")
        elif status is not None and status.idle_s > limit_s / 4:
            found.append(f"no progress for {duration(status.idle_s)}; the run is stopped as stalled after {limit_s:g} s (limits.stall_s)")
    if snapshot.state.problem is not None:
        found.append(f"{snapshot.state.problem}: what it says is not shown")
    if snapshot.state.unreadable:
        found.append(f"{snapshot.state.unreadable} lines of the run's files could not be read: another release wrote them, or they are damaged")
    return [Text(text, style="yellow", no_wrap=True, overflow="ellipsis") for text in found]


def _version(snapshot: Snapshot, width: int) -> Text:
    version, total = _version_now(snapshot), snapshot.config.total_steps
    bar = progress_bar(version / total, max(10, min(50, width - 45)), snapshot.marks)
    return Text.assemble((f"{version}/{total} ", "bold"), bar, f" {version / total:.0%}")


def _version_now(snapshot: Snapshot) -> int:
    """The newest that anybody knows of."""
    topic, step = snapshot.topic, snapshot.state.step
    return max(topic.version if topic is not None else 0, step.version if step is not None else 0)


def _reward(snapshot: Snapshot) -> Text | None:
    rewards = snapshot.state.rewards
    if not rewards:
        return None
    return Text.assemble((f"{rewards[-1]:.2f}", "bold"), "  ", (sparkline(list(rewards), SPARK_CELLS, snapshot.marks), "cyan"))


def _accuracy(snapshot: Snapshot) -> Text | None:
    found = snapshot.state.evaluations
    if not found:
        return None
    course = sparkline([one.accuracy for one in found], ACCURACY_CELLS, snapshot.marks) if len(found) > 1 else ""
    first = f", first {found[0].accuracy:.3f} ({found[0].version})" if len(found) > 1 else ""
    return Text.assemble((f"{found[-1].accuracy:.3f}", "bold"), f" (version {found[-1].version}){first}  ", (course, "cyan"))


def _staleness(snapshot: Snapshot) -> Text | None:
    step, bound = snapshot.state.step, snapshot.config.staleness
    if step is None or step.staleness_mean is None or step.staleness_max is None:
        return None
    broken = bound is not None and step.staleness_max > bound
    most = Text(f"max {step.staleness_max:.0f}", style="bold red" if broken else "")
    return Text.assemble(f"mean {step.staleness_mean:.2f}  ", most, f" of {bound}" if bound is not None else "")


def _pace(snapshot: Snapshot) -> list[str]:
    step, step_s = snapshot.state.step, snapshot.state.step_s()
    parts = []
    if step is not None and step.tokens_per_s is not None and step.tokens_per_s_device is not None:
        parts.append(f"{_short(step.tokens_per_s)} trained tokens/s, {_short(step.tokens_per_s_device)} a device")
    if step_s is not None:
        parts.append(f"{step_s:.2f} s a step")
    return parts


def _groups(snapshot: Snapshot) -> list[str]:
    topic, step = snapshot.topic, snapshot.state.step
    if topic is not None:
        ledger, used = topic.ledger, topic.open
    elif step is not None:
        ledger, used = step.ledger, step.open_groups
    else:
        return []
    capacity = WindowRules(window(snapshot.config)).capacity
    permits = f"{used} of {capacity} permits used" if capacity is not None else f"{used} open, bounded by bytes"
    dropped = {state.partition(":")[2]: count for state, count in ledger.items() if state.startswith("dropped") and count}
    states = [f"{state} {ledger.get(state, 0)}" for state in (*OPEN_STATES, "trained")]
    drops = [f"dropped {sum(dropped.values())} ({', '.join(f'{reason} {count}' for reason, count in dropped.items())})"] if dropped else []
    return [permits, *states, *drops]


def _queue(snapshot: Snapshot) -> list[str]:
    """Rows that wait for each stage, and those that it has."""
    topic, step = snapshot.topic, snapshot.state.step
    if topic is not None:
        depth = [(consumer.name, consumer.ready_rows, consumer.leased_rows) for consumer in topic.consumers]
    elif step is not None and step.stages:
        depth = [(name, stage.ready_rows, stage.leased_rows) for name, stage in step.stages.items()]
    else:
        return []
    rows = [f"{name} {ready}" + (f" ({leased})" if leased else "") for name, ready, leased in depth]
    return [f"rows ready (leased): {rows[0]}", *rows[1:]] if rows else []


def flowed(parts: list[str], width: int, dot: str) -> Text:
    """Parts with a dot between them, in as many lines as it takes; no part is broken."""
    lines = [parts[0]]
    for part in parts[1:]:
        longer = f"{lines[-1]} {dot} {part}"
        if len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(part)
    return Text("\n".join(lines))


def _short(value: float) -> str:
    """Three digits or so."""
    return f"{value / 1e6:.2f}M" if value >= 1e6 else f"{value / 1e3:.1f}k" if value >= 1e4 else f"{value:.0f}"
