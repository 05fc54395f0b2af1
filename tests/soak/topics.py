"""The queue that is soaked: two topics of the same columns, one for each way in which groups come to be."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.soak.content import ROWS
from tests.soak.settings import ASKED, PUT
from transfer_queue.controller.config import CoreConfig
from transfer_queue.messages import Column, Consumer, Policy, TopicSpec, Window

BATCH = 8
STALENESS = 1
MADE = ("key", "tokens", "blob", "note", "prompt")  # what the graders read; the trainer reads the score besides
TRAINED = (*MADE, "score")
LEASE_S, HEARTBEAT_S, STALL_S, COMEBACK_S = 15.0, 30.0, 240.0, 180.0  # a long log takes a minute to come back from


def spec(name: str) -> TopicSpec:
    producer, policy = ("writer", "wait") if name == PUT else ("rollout", "drop")
    prompts = producer if name == PUT else "source"
    return TopicSpec(
        name=name,
        model=f"model-{name}",
        columns=(
            Column("key", "int64", "scalar", producer, shape=(4,)),
            Column("tokens", "int32", "per_token", producer),
            Column("blob", "uint8", "blob", producer),
            Column("note", "uint8", "text", producer),
            Column("prompt", "int32", "per_token", prompts, shared=True),
            Column("score", "float64", "scalar", "grade"),
        ),
        consumers=(
            Consumer("grade", inputs=MADE, outputs=("score",)),
            Consumer("train", inputs=TRAINED, unit="group", terminal=True),
        ),
        window=Window(batch=BATCH, staleness=STALENESS, policy=msgspec.convert(policy, Policy)),
        prompts_bound=32,
        rows_per_group=ROWS,
    )


def write_config(file: Path) -> None:
    """What `python -m transfer_queue controller` is started with."""
    config = CoreConfig(topics=[spec(PUT), spec(ASKED)], lease_s=LEASE_S, heartbeat_s=HEARTBEAT_S, stall_s=STALL_S, comeback_s=COMEBACK_S)
    file.write_bytes(msgspec.json.encode(config))
