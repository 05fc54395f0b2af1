"""From leases to prompts that this run can train: what was dropped meanwhile is left out, what is too long is given up and counted."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from asyncflow.workers import unfinished
from asyncflow.workers.context import REPLY_S, WorkerContext
from asyncflow.workers.unfinished import Tokens
from transfer_queue.errors import Gone
from transfer_queue.messages import GroupLease

TOO_LONG = "prompt_too_long"  # why such a group is dropped
MOST_IN_A_ROW = 1024  # prompts that are too long, without one that fits: then it is the settings that do not fit


class Prompted(NamedTuple):
    lease: GroupLease
    prompt: list[int]  # token ids
    left: dict[int, Tokens]  # by row: what another attempt has made of it


class PromptReader:
    def __init__(self, context: WorkerContext) -> None:
        self._context, self._width = context, context.config.rollout.prompt_width
        self._in_a_row = 0

    def read(self, leases: list[GroupLease]) -> list[Prompted]:
        """Prompts of at most `rollout.prompt_width` tokens; groups with a longer one are dropped, and the queue replaces them."""
        prompted = self._read(leases)
        fitting = [each for each in prompted if len(each.prompt) <= self._width]
        if len(fitting) < len(prompted):
            self._give_up([each for each in prompted if len(each.prompt) > self._width])
        if fitting:
            self._in_a_row = 0
        return fitting

    def _read(self, leases: list[GroupLease]) -> list[Prompted]:
        """A group may be dropped between its lease and this read: it is left out, whoever dropped it has counted it."""
        while leases:
            try:
                return self._all_of(leases)
            except Gone as gone:
                leases = [lease for lease in leases if lease.gid not in gone.gids]
        return []

    def _all_of(self, leases: list[GroupLease]) -> list[Prompted]:
        client = self._context.client
        prompts = client.read_shared(leases, ["prompt_ids"], self._context.topic)["prompt_ids"]
        begun = [lease for lease in leases if lease.left is not None]
        left = dict(zip((lease.gid for lease in begun), client.read_left(begun), strict=True)) if begun else {}
        return [
            Prompted(lease, np.asarray(prompts[index]).tolist(), unfinished.decode(left.get(lease.gid, b""))) for index, lease in enumerate(leases)
        ]

    def _give_up(self, too_long: list[Prompted]) -> None:
        self._in_a_row += len(too_long)
        if self._in_a_row > MOST_IN_A_ROW:
            lease, prompt, _ = too_long[-1]
            raise ValueError(
                f"rollout.prompt_width = {self._width}: {self._in_a_row} prompts in a row are longer (that of group {lease.gid} has {len(prompt)} "
                f"tokens) and were dropped({TOO_LONG}), so no batch would ever fill; raise rollout.prompt_width or give the task shorter items"
            )
        self._context.client.drop_groups(self._context.topic.name, [each.lease.gid for each in too_long], TOO_LONG).result(REPLY_S)
