"""Which role serves which stage, as the queue is told for its stall reports: every stage of the topic has somebody to look for."""

from __future__ import annotations

from pathlib import Path

from asyncflow.flow.core import core_config
from tests.config.recipes import load_text
from transfer_queue.controller.scene import PUBLISH
from transfer_queue.controller.schema import Schema


def test_every_stage_of_the_topic_and_the_publication_is_some_roles(tmp_path: Path) -> None:
    core = core_config(load_text(tmp_path))
    schema = Schema(core.topics[0])
    served = [stage for stages in core.roles.values() for stage in stages]
    assert sorted(served) == sorted([schema.source, schema.generator, PUBLISH, *schema.numbers])
    assert core.roles["scorer"] == ["reward", "advantage"]
    assert (core.roles["trainer"], core.roles["publisher"], core.roles["rollout"]) == (["train"], [PUBLISH], ["rollout"])
