"""The YAML in the queue's terms: window, columns, consumers."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncflow.config.errors import SettingError
from asyncflow.flow.bytes import group_bytes
from asyncflow.flow.core import core_config
from asyncflow.flow.topic import topic_spec
from asyncflow.flow.window import window
from asyncflow.workers.unfinished import encode
from tests.config.recipes import MINIMAL, load_text
from transfer_queue.messages import Consumer


def consumers(folder: Path, *overrides: str) -> dict[str, Consumer]:
    return {consumer.name: consumer for consumer in topic_spec(load_text(folder, MINIMAL, *overrides)).consumers}


def test_one_number_sets_the_window(tmp_path: Path) -> None:
    settings = window(load_text(tmp_path, MINIMAL, "staleness=0", "batch_size=7", "flow.policy=drop", "flow.requeue=true"))
    assert (settings.staleness, settings.batch, settings.policy, settings.requeue) == (0, 7, "drop", True)
    assert window(load_text(tmp_path, MINIMAL, "staleness=null")).staleness is None


def test_every_column_has_the_producer_that_the_stages_say(tmp_path: Path) -> None:
    columns = {column.name: column for column in topic_spec(load_text(tmp_path)).columns}
    assert {name: column.producer for name, column in columns.items()} == {
        "prompt_ids": "source",
        "item": "source",
        "response_ids": "rollout",
        "rollout_logprobs": "rollout",
        "token_versions": "rollout",
        "finish": "rollout",
        "rewards": "reward",
        "old_logprobs": "actor_forward",
        "ref_logprobs": "ref_forward",
        "advantages": "advantage",
    }
    assert [name for name, column in columns.items() if column.shared] == ["prompt_ids", "item"]


def test_only_stages_that_follow_trained_weights_wait_for_weights(tmp_path: Path) -> None:
    assert [name for name, consumer in consumers(tmp_path).items() if consumer.needs_weights] == ["actor_forward"]


def test_the_trainer_alone_is_terminal_and_the_rollout_no_consumer(tmp_path: Path) -> None:
    found = consumers(tmp_path)
    assert [name for name, consumer in found.items() if consumer.terminal] == ["train"]
    assert "rollout" not in found


def test_another_stage_changes_the_schema_and_its_digest(tmp_path: Path) -> None:
    plain = topic_spec(load_text(tmp_path))
    overrides = ("+stages.values.compute='a:b'", "+stages.values.outputs.values.dtype=float32", "resources.scorer.stages=[reward,advantage,values]")
    assert topic_spec(load_text(tmp_path, MINIMAL, *overrides)).digest() != plain.digest()


def test_the_worst_case_of_a_group_is_counted_by_hand(tmp_path: Path) -> None:
    shape = ("rollout.prompt_width=10", "rollout.response_width=6", "rollout.samples_per_prompt=3", "task.item_bytes=100", "batch_size=1")
    shared = 16 * 4 + 100  # prompt_ids, item
    row = 3 * 16 * 4 + 1 + 4 + 2 * 16 * 4 + 4  # rollout's three runs, finish, rewards, two log-probability runs, advantages
    assert group_bytes(load_text(tmp_path, MINIMAL, *shape)) == shared + 3 * row


def test_where_unfinished_rows_are_handed_back_a_group_reserves_what_they_take_beside_its_columns(tmp_path: Path) -> None:
    shape = ("rollout.response_width=6", "rollout.samples_per_prompt=3", "batch_size=1")
    keep, abort = (load_text(tmp_path, MINIMAL, *shape, f"rollout.pause_mode={mode}") for mode in ("keep", "abort"))
    logprobs, versions = [-1.0] * 6, [2**31 - 6 + token for token in range(6)]  # of weights that came with each token, each a recovered trainer's
    epochs = {epoch: (version, version) for epoch, version in enumerate(versions)}
    longest = encode([(row, ([2**31 - 1] * 6, logprobs, versions, epochs)) for row in range(3)])
    reserved = group_bytes(abort) - group_bytes(keep)
    assert len(longest) <= reserved <= 3 * (12 * 6 + 128)
    assert topic_spec(abort).window.group_bytes == group_bytes(abort)
    with pytest.raises(SettingError, match=r"flow\.budget_bytes"):
        load_text(tmp_path, MINIMAL, *shape, "rollout.pause_mode=abort", f"flow.budget_bytes={group_bytes(abort) - 1}")
    load_text(tmp_path, MINIMAL, *shape, "rollout.pause_mode=abort", f"flow.budget_bytes={group_bytes(abort)}")


@pytest.mark.parametrize(("every", "duties"), [("null", []), ("5", [("evaluate", "rollout", "policy", 5)])])
def test_evaluation_is_a_duty_of_the_rollout(tmp_path: Path, every: str, duties: list[tuple[str, str, str, int]]) -> None:
    core = core_config(load_text(tmp_path, MINIMAL, f"evaluation.every={every}", "limits.lease_s=3", "limits.stall_s=9"))
    assert [(duty.name, duty.role, duty.model, duty.every) for duty in core.duties] == duties
    assert (core.lease_s, core.stall_s) == (3.0, 9.0)
