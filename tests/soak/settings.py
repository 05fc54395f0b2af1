"""What a soak is: how long, how often something is killed, who takes part."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["controller", "shard", "writer", "source", "rollout", "grader", "trainer", "fuzzer"]

PUT, ASKED = "put", "asked"  # the topics: groups that are put whole, and groups that are made of prompts
CONTROLLER = "controller"
SHARDS = 3
WRITERS = ROLLOUTS = 4  # 8 producers, and a source of prompts
GRADERS = 3  # a topic; with its trainer 8 consumers
CAPACITY_BYTES, KEEP_BYTES = 256 << 20, 32 << 20
GROUPS: tuple[tuple[Kind, ...], ...] = (("controller",), ("shard",), ("writer", "source", "rollout"), ("grader", "trainer"))
"""Whom a kill hits is drawn from one of these, each as likely: else the controller would hardly ever be hit."""


class Settings(msgspec.Struct, frozen=True):
    folder: str  # journal, logs, records and report
    seconds: float  # of load with kills; calming down comes on top
    seed: int
    kill_s: float  # mean time between two kills
    fuzz: int  # messages of nonsense, half of them to the controller, half to shards


class Seat(msgspec.Struct, frozen=True):
    """One process of the soak, through all its lives."""

    name: str
    kind: Kind
    topic: str = ""
    index: int = 0
    spared: bool = False  # never killed: what it leaks adds up over the whole run


def seats() -> list[Seat]:
    """In the order in which they are started."""
    return [
        Seat(CONTROLLER, "controller"),
        *(Seat(f"shard-{index}", "shard", "", index, spared=index == 0) for index in range(SHARDS)),
        Seat("source-0", "source", ASKED),
        *(Seat(f"writer-{index}", "writer", PUT, index, spared=index == 0) for index in range(WRITERS)),
        *(Seat(f"rollout-{index}", "rollout", ASKED, index, spared=index == 0) for index in range(ROLLOUTS)),
        *(Seat(f"grader-{topic}-{index}", "grader", topic, index, spared=index == 0) for topic in (PUT, ASKED) for index in range(GRADERS)),
        *(Seat(f"trainer-{topic}", "trainer", topic) for topic in (PUT, ASKED)),
        Seat("fuzzer-0", "fuzzer", spared=True),
    ]
