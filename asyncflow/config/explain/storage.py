"""What is stored where: columns of the topic, versions of weights, files of the run's directory."""

from __future__ import annotations

import msgspec

from asyncflow.config.observe import ObserveSettings
from asyncflow.config.root import RunConfig
from asyncflow.flow.bytes import column_bytes
from asyncflow.launch.plan import PREPARE, shard_specs, worker_specs
from asyncflow.observe.environment import ENVIRONMENT
from asyncflow.observe.records import CONTROLLER_URL, EVENTS, JOURNAL, METRICS, STALL, SUMMARY, TIMELINE
from asyncflow.observe.summary import EXPORTS
from asyncflow.workers.phase import FOLDER as PHASES
from transfer_queue.messages import Column, TopicSpec


class StoredColumn(msgspec.Struct, frozen=True):
    """One column in the shards' memory."""

    name: str
    dtype: str
    kind: str
    shape: str  # of one group
    producer: str
    consumers: list[str]
    shared: bool  # one value for the whole group, stored once
    optional: bool
    group_bytes: int  # at worst


class StoredFile(msgspec.Struct, frozen=True):
    """One file of the run's directory. `when`: always, or what must happen."""

    name: str
    holds: str
    when: str = "always"


class Storage(msgspec.Struct, frozen=True):
    topic: str
    schema: str  # hash that every handshake compares
    columns: list[StoredColumn]
    run_dir: str
    files: list[StoredFile]


def storage(config: RunConfig, topic: TopicSpec) -> Storage:
    sizes = column_bytes(config)
    return Storage(
        topic=topic.name,
        schema=topic.digest(),
        columns=[_column(config, topic, column, sizes[column.name]) for column in topic.columns],
        run_dir=config.run.dir or f"{config.run.root}/{config.run.name}-TIME",
        files=files(config),
    )


def _column(config: RunConfig, topic: TopicSpec, column: Column, group_bytes: int) -> StoredColumn:
    return StoredColumn(
        name=column.name,
        dtype=column.dtype,
        kind=column.kind,
        shape=_shape(config, topic, column),
        producer=column.producer,
        consumers=[name for name, stage in config.stages.items() if column.name in stage.inputs],
        shared=column.shared,
        optional=column.optional,
        group_bytes=group_bytes,
    )


def _shape(config: RunConfig, topic: TopicSpec, column: Column) -> str:
    """Of one group: rows × values of a row."""
    rows = 1 if column.shared else topic.rows_per_group
    rollout = config.rollout
    values = {"scalar": "", "per_token": f" × ≤ {rollout.prompt_width + rollout.response_width}", "blob": f" × ≤ {config.task.item_bytes} bytes"}
    return f"{rows}{values[column.kind]}"


def files(config: RunConfig) -> list[StoredFile]:
    """Everything that a run may leave in its directory."""
    workers = [spec.name for spec in worker_specs(config, "", None)]
    names = ["controller", *(spec.name for spec in shard_specs(config, "", None)), *workers]
    if any(model.prepare is not None for model in config.models.values()):
        names.insert(0, PREPARE)
    every = config.weights.export_every
    due = "at the end" if every is None else f"every {every} versions (0 included) and at the end"
    return [
        StoredFile("config.json", "the resolved configuration"),
        StoredFile(ENVIRONMENT, "versions, machine, command"),
        StoredFile(CONTROLLER_URL, "where the controller listens"),
        StoredFile(EVENTS, "every change of a group, a version or the membership"),
        StoredFile(METRICS, "one line a step"),
        StoredFile(TIMELINE, "what every worker did when"),
        StoredFile(SUMMARY, "the result", "when the run is over"),
        StoredFile(STALL, "every stage and what it waits for", f"after {config.limits.stall_s:g} s without progress"),
        StoredFile(STALL.replace(".json", ".txt"), "the same for people", f"after {config.limits.stall_s:g} s without progress"),
        StoredFile(f"{EXPORTS}/", "Hugging Face files and the WeightsId, one folder a version", due),
        StoredFile("logs/", f"what each process prints, one NAME.log each: {joined(names)}"),
        StoredFile(f"{PHASES}/", f"what each worker does now: {joined(workers)}"),
        *([StoredFile(f"{JOURNAL}/", "what a killed controller comes back out of")] if config.queue.journal else []),
        *_observed(config.observe),
    ]


def joined(names: list[str]) -> str:
    """Names as few words: rollout-0 … rollout-12 for thirteen."""
    roles: dict[str, list[str]] = {}
    for name in names:
        roles.setdefault(name.rpartition("-")[0] or name, []).append(name)
    return ", ".join(same[0] if len(same) == 1 else f"{same[0]} … {same[-1]}" for same in roles.values())


def _observed(settings: ObserveSettings) -> list[StoredFile]:
    found = [StoredFile(f"{name}/", f"of the writer {name}") for name in settings.writers if ":" not in name]
    if settings.prometheus_bind is not None:
        found.append(StoredFile("prometheus.url", "where Prometheus may ask", "while the run goes on"))
    return found
