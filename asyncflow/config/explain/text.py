"""An `Explanation` as a person reads it: headings and tables, in colour where there is a terminal, plain text where there is none."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from asyncflow.config.explain.admission import Admission
from asyncflow.config.explain.bits import Bits
from asyncflow.config.explain.explanation import Explanation
from asyncflow.config.explain.length import Length
from asyncflow.config.explain.memory import Memory
from asyncflow.config.explain.ratio import OldLogprobs
from asyncflow.config.explain.roles import Processes, Role, Served
from asyncflow.config.explain.schedule import Due, Schedule
from asyncflow.config.explain.storage import Storage
from asyncflow.config.explain.waits import Waits

PLAIN_WIDTH = 150  # columns where nobody says how wide the paper is

LAUNCHES = {"local": "every process on this machine", "ray": "workers on the nodes of a Ray cluster, the others on this machine"}


def show(explanation: Explanation) -> None:
    """To the terminal as it is; to a pipe or a file plain, as wide as the tables want it, without blanks at the ends of lines."""
    terminal = Console(highlight=False)
    if terminal.is_terminal:
        draw(explanation, terminal)
        return
    text = io.StringIO()
    draw(explanation, Console(file=text, highlight=False, width=PLAIN_WIDTH))
    print("\n".join(line.rstrip() for line in text.getvalue().splitlines()))


def draw(explanation: Explanation, console: Console) -> None:
    pairs(console, f"Run {explanation.name!r}", _length(explanation.length))
    _admission(explanation.admission, console)
    _processes(explanation.processes, console)
    _memory(explanation.memory, console)
    _storage(explanation.storage, console)
    _waits(explanation.waits, console)
    pairs(console, "Denominator of the ratio (old_logprobs)", _ratio(explanation.old_logprobs))
    pairs(console, "Evaluation and export", _schedule(explanation.schedule))
    _bits(explanation.bit_for_bit, console)
    _warnings(explanation.waits, console)
    _refused(explanation.refused, console)


def pairs(console: Console, title: str, rows: Sequence[tuple[str, str]]) -> None:
    table(console, title, (), rows)


def table(console: Console, title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A heading and rows of words; without heads no line for them."""
    _heading(console, title)
    drawn = Table(*heads, box=None, show_header=bool(heads), padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for row in rows:
        drawn.add_row(*(_escaped(word) for word in row))
    console.print(drawn)


def _heading(console: Console, title: str) -> None:
    console.print()
    console.print(title, style="bold", markup=False)


def _escaped(word: str) -> str:
    return word.replace("[", r"\[")  # lists are lists here and no markup


def _length(length: Length) -> list[tuple[str, str]]:
    short = f", the last one {length.last_batch_groups}" if length.last_batch_groups != length.batch_groups else ""
    return [
        ("steps", f"{length.steps}: versions 1 to {length.steps}, version 0 is what it starts from"),
        ("a batch", f"{length.batch_groups} groups = {length.batch_rows} rows{short}"),
        ("in all", f"{length.groups} groups = {length.rows} rows, at most {length.most_response_tokens} response tokens"),
        ("a pass", f"{length.micro_batch_groups} whole groups (algorithm.micro_batch_groups)"),
    ]


def _admission(admission: Admission, console: Console) -> None:
    k = "null" if admission.staleness is None else str(admission.staleness)
    full = "none: bytes alone bound it"
    if admission.capacity_groups is not None:
        full = f"(k + 1) × B = ({k} + 1) × {admission.batch_groups} = {admission.capacity_groups} groups = {admission.capacity_rows} rows"
    rows = [
        ("policy", f"{admission.policy}, staleness k = {k}, batch B = {admission.batch_groups}"),
        ("window", full),
        ("bytes", f"flow.budget_bytes lets in {admission.byte_groups} groups"),
        ("permits", f"{admission.permits} groups open at once, bound by the {admission.bound_by}"),
        ("min_version", f"{admission.min_version} (v: trainer's version; open: groups neither trained nor dropped)"),
        ("reissue", admission.reissue),
        ("expiry", admission.expiry),
    ]
    if admission.reissue_example:
        rows.insert(6, ("", admission.reissue_example))
    pairs(console, "Flow control", rows)
    if admission.worked:
        lines = [(f"{line.open_from}–{line.open_to}", str(line.version)) for line in admission.worked]
        table(console, f"For example at v = {admission.worked_at}", ("groups open", "the next group asks for weights of version, or newer"), lines)


def _processes(found: Processes, console: Console) -> None:
    heads = ("role", "workers", "devices of each", "threads", "stages", "models", "when one is killed")
    table(console, "Who computes what", heads, (_role(role) for role in found.roles))
    device = "no accelerator" if found.kind == "cpu" else f"{found.devices} {found.kind} devices, {found.placed} given to roles"
    rows = [
        ("launch", LAUNCHES[found.launch]),
        ("devices", f"{device}; tokens/s/device is divided by {found.rate_divisor}"),
        ("processes", f"{found.processes} with launcher, controller and shards; {found.threads} threads that compute"),
        ("decoding", f"{found.slots} sequences at once over all replicas, room for {found.groups_in_slots} whole groups"),
    ]
    pairs(console, "In all", rows)


def _role(role: Role) -> tuple[str, ...]:
    devices = "; ".join(dict.fromkeys(_indexes(each) for each in role.devices)) if len(role.devices) <= 2 else _many(role.devices)
    devices += f" ({role.share:g} of each)" if role.share < 1 else ""
    devices += f", beside {role.beside}" if role.beside is not None else ""
    stages = ", ".join(f"{stage.name} ({stage.unit}s, {_lease(stage)})" for stage in role.stages)
    models = ", ".join(f"{model}: {how}" for model, how in role.models.items())
    return role.name, str(role.workers), devices, str(role.threads), stages or "–", models or "–", role.death


def _lease(stage: Served) -> str:
    return f"≤ {stage.limit}" if stage.at_least == 1 else f"{stage.at_least}–{stage.limit}" if stage.at_least < stage.limit else f"{stage.limit}"


def _many(devices: list[list[int]]) -> str:
    if not devices[0]:
        return "CPU"
    return f"{len(devices[0])} each: {_indexes(devices[0])}; …; {_indexes(devices[-1])}"


def _indexes(devices: list[int]) -> str:
    if not devices:
        return "CPU"
    consecutive = len(devices) > 2 and devices == list(range(devices[0], devices[-1] + 1))
    return f"{devices[0]}–{devices[-1]}" if consecutive else ", ".join(map(str, devices))


def _memory(memory: Memory, console: Console) -> None:
    samples, weights = memory.samples, memory.weights
    needs = "everything that is open" if samples.capacity is None else f"a full window needs {size(samples.capacity)}"
    fits = "" if samples.capacity is None else f"; the budget would hold the whole window up to staleness {samples.staleness_fits}"
    rows = [
        ("a group reserves", f"{size(samples.group)} at admission, its worst case"),
        ("budget", f"{size(samples.budget)}: {needs}, one batch {size(samples.batch)}{fits}"),
        ("prompts that wait", f"{size(samples.prompts)} at most"),
        ("shards", f"{size(samples.shards)} in all, {size(samples.shards_free)} beside budget and prompts"),
    ]
    for model in memory.models:
        what = "size not known before its files are there" if model.bytes is None else f"{model.parameters} parameters, {size(model.bytes)}"
        rows.append((f"model {model.name}", f"{model.source}, {model.dtype}: {what}"))
    total = "" if weights.bytes is None else f" = {size(weights.bytes)}"
    of = [f"{weights.caches[0]} × {weights.slots}", *(f"{name} × {weights.receiver_slots}" for name in weights.caches[1:])]
    slots = f"{len(of)} cache{'s' * (len(of) > 1)} of slots × the model{total}: {', '.join(of)}"
    backend = "" if weights.transport == "pull" else f", backend {weights.backend}"
    rows.append(("versions of weights", f"{slots}; by {weights.transport}{backend}"))
    if weights.mapping:
        why = "" if weights.transport == "pull" else f" (on the CPU, which no {weights.backend} broadcast reaches)"
        where = "the publisher's slots, mapped, on its host; elsewhere slots of their own"
        rows.append(("by pull", f"{', '.join(weights.mapping)}{why}: {where}"))
    pairs(console, "Memory", rows)


def size(count: int) -> str:
    """Bytes as they are, and in a unit where they are many."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if abs(count) >= 1 << power:
            return f"{count} B ({count / (1 << power):.1f} {unit})"
    return f"{count} B"


def _storage(storage: Storage, console: Console) -> None:
    heads = ("column", "dtype", "a group", "bytes", "producer", "consumers")
    rows = [
        (
            f"{column.name}{' (shared)' if column.shared else ''}{' (optional)' if column.optional else ''}",
            f"{column.dtype} {column.kind}",
            column.shape,
            str(column.group_bytes),
            column.producer,
            ", ".join(column.consumers) or "nobody",
        )
        for column in storage.columns
    ]
    table(console, f"Stored in the shards: topic {storage.topic!r}, schema {storage.schema} (shared: once a group)", heads, rows)
    table(console, f"Written to {storage.run_dir}", ("file", "holds", "when"), ((file.name, file.holds, file.when) for file in storage.files))


def _waits(waits: Waits, console: Console) -> None:
    table(console, "Who can stand still", ("who", "when", "until"), ((wait.who, wait.when, wait.until) for wait in waits.stalls))
    table(console, "Deadlines", ("setting", "value", "what happens when"), ((line.key, line.value, line.then) for line in waits.deadlines))


def _ratio(old: OldLogprobs) -> list[tuple[str, str]]:
    return [
        ("source", f"{old.source}, column {old.column or 'none'}"),
        ("computed by", old.computed_by),
        ("with", old.with_weights),
        ("correction", old.importance),
    ]


def _schedule(schedule: Schedule) -> list[tuple[str, str]]:
    evaluation = "none (evaluation.every is null)"
    if schedule.evaluation.count:
        evaluation = f"{_due(schedule.evaluation)}; {schedule.evaluation_items} items each, by one of {schedule.evaluators} replicas"
    return [("evaluated", evaluation), ("exported", _due(schedule.export))]


def _due(due: Due) -> str:
    if not due.versions:
        return "never"
    *first, last = map(str, due.versions)
    between = [f"… {due.left_out} more …"] if due.left_out else []
    return f"{due.count} versions: {', '.join([*first, *between, last])}"


def _bits(bits: Bits, console: Console) -> None:
    title = f"Equal to the synchronous loop bit for bit: {'yes' if bits.equal else 'no'}"
    rows = [("yes" if condition.met else "NO", condition.name, condition.here) for condition in bits.conditions]
    table(console, title, ("met", "condition", "here"), rows)


def _warnings(waits: Waits, console: Console) -> None:
    """Last but one, for the end of a long text is what a person has before his eyes."""
    if waits.warnings:
        pairs(console, "Probably not meant", [("!", warning) for warning in waits.warnings])


def _refused(refused: list[str], console: Console) -> None:
    if refused:
        pairs(console, "`asyncflow train` would refuse this", [(f"{number}.", reason) for number, reason in enumerate(refused, start=1)])
    else:
        pairs(console, "`asyncflow train` would start this", [])
