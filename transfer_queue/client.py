"""A member's door to the queue: the controller's requests as methods, one a request, so that all a member can say is found in one place.

They send and return a `Pending`; the three that carry bytes (`put_prompts`, `put_rows`, `write_back`) store them on a shard first, then tell the
controller, and return its reply. Any of them may be repeated after a QueueTimeout: bytes are then stored again, and the controller frees what it does
not use.
A client belongs to one thread; `attach` makes another connection of the same member for another thread. No caller names a shard.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from transfer_queue import messages as m
from transfer_queue.pending import Pending
from transfer_queue.putting import put_groups
from transfer_queue.transfer import Transfer

__all__ = ["Pending", "QueueClient"]


LEFT = "left"  # what the bytes are called that an attempt hands back: a column of no topic
_LEFT_SPEC = m.TopicSpec(
    name=LEFT,
    model="",
    columns=(m.Column(name=LEFT, dtype="uint8", kind="blob", producer="", shared=True, optional=True),),
    consumers=(),
    window=m.Window(batch=1, staleness=None),
)


class QueueClient(Transfer):
    """`connect` joins a run (see Connection); `write`, `read`, `discard` move bytes (see Transfer)."""

    # ------------------------------------------------------------ producers without prompts

    def put(
        self,
        topic: str,
        columns: Mapping[str, Any],
        *,
        gids: Sequence[int] | None = None,
        rows_per_group: int = 1,
        version: int | None = None,
        tokens: Sequence[int] | None = None,
        wait_s: float = 30.0,
        token: int | None = None,
    ) -> m.OkStored:
        """Put whole groups in one request; `reply.groups` are their gids, in order. Waits up to `wait_s` for room in the window.

        columns: one row each, those of a group adjacent, `rows_per_group` of them; of shared columns one a group.
        gids: unlike any that was put before; None: the controller counts on.
        version: committed version of the weights that made the rows; None: the newest. tokens: of each row, for the record.
        token: a repeat with the same one (after QueueTimeout) stores nothing again and gets the same reply.
        A reply without groups: there was no room, the topic is over (`done`), or `columns` have no rows; nothing was stored.
        """
        numbers = (gids, rows_per_group, version, tokens)
        return put_groups(self, self.topic(topic), columns, *numbers, wait_s, secrets.randbits(62) if token is None else token)

    # ------------------------------------------------------------ source

    def put_prompts(
        self, topic: str, gids: Sequence[int], columns: Mapping[str, Any], cursor: int, wait_s: float = 30.0, rows: int | None = None
    ) -> m.OkPrompts:
        """Put prompts, shared columns aligned with `gids`; waits up to `wait_s` for room. `cursor` is the next gid the source would put.

        A reply with a smaller `cursor`: there was no room, or the topic is over; nothing was stored, and the same put may be repeated.
        """

        def build(places: dict[str, np.ndarray]) -> m.PutPrompts:
            slices = {name: [m.Slice(*place) for place in table.tolist()] for name, table in places.items()}
            prompts = [m.PromptPut(gid=gid, columns={name: found[at] for name, found in slices.items()}, rows=rows) for at, gid in enumerate(gids)]
            return m.PutPrompts(topic=topic, member="", incarnation=0, prompts=prompts, cursor=cursor, wait_s=wait_s)

        reply: m.OkPrompts = self.publish(gids, columns, self.topic(topic), build, wait_s + self.timeout_s, lambda reply: reply.cursor >= cursor)
        return reply

    def demand(self, topic: str, wait_s: float = 30.0) -> Pending[m.OkDemand]:
        """How many prompts may be put now; parks until some may."""
        return self.submit(m.Demand(topic=topic, member="", incarnation=0, wait_s=wait_s))

    def close_prompts(self, topic: str, count: int) -> Pending[m.OkEmpty]:
        return self.submit(m.ClosePrompts(topic=topic, count=count))

    # ------------------------------------------------------------ rollout

    def pull(self, topic: str, loaded: int, limit: int, wait_s: float = 30.0, epoch: int | None = None) -> Pending[m.OkPulled]:
        """`epoch`: of the loaded version; None: the one in which it was made."""
        return self.submit(m.Pull(topic=topic, member="", incarnation=0, loaded=loaded, limit=limit, wait_s=wait_s, epoch=epoch))

    def progress(self, topic: str, items: list[m.ProgressItem]) -> Pending[m.OkProgress]:
        return self.submit(m.Progress(topic=topic, member="", incarnation=0, items=items))

    def hand_back(self, topic: str, groups: Sequence[m.HandedBack], left: Sequence[bytes]) -> m.OkHandedBack:
        """End attempts and keep what they have made of unfinished rows: `left[i]` are bytes of groups[i], b"" without any."""
        some = [at for at, data in enumerate(left) if data]

        def write() -> dict[str, np.ndarray]:
            return self.write_places([groups[at].gid for at in some], {LEFT: [left[at] for at in some]})

        def build(places: dict[str, np.ndarray]) -> m.HandBack:
            found = {at: m.Slice(*place) for at, place in zip(some, places[LEFT].tolist(), strict=True)}
            named = [msgspec.structs.replace(group, left=found.get(at)) for at, group in enumerate(groups)]
            return m.HandBack(topic=topic, member="", incarnation=0, groups=named)

        _, reply = self.told(write, build, self.timeout_s)
        handed: m.OkHandedBack = reply
        return handed

    def read_left(self, leases: Sequence[m.GroupLease]) -> list[bytes]:
        """What earlier attempts at these groups handed back; b"" where none did. Raises as `read`."""
        places = m.places(m.packed_places(lease.left for lease in leases))
        gids = np.array([lease.gid for lease in leases], dtype=np.int64)
        found: Any = self._read(gids, {LEFT: places}, _LEFT_SPEC, writable=False)[LEFT]
        return [bytes(data) for data in found]

    def put_rows(
        self, topic: str, rows: Sequence[m.RowPut], close: dict[int, int] | None = None, columns: Mapping[str, Any] | None = None
    ) -> m.OkPut:
        """Publish rows and close groups (gid → row count). `columns` are aligned with `rows`; without them, rows name slices of `write`."""

        def build(places: dict[str, np.ndarray]) -> m.PutRows:
            return m.PutRows(topic=topic, member="", incarnation=0, rows=m.PutBatch.of(rows, _packed(places)), close=close or {})

        reply: m.OkPut = self.publish([row.gid for row in rows], columns or {}, self.topic(topic), build, self.timeout_s)
        return reply

    def drop_groups(self, topic: str, gids: list[int], reason: str) -> Pending[m.OkEmpty]:
        return self.submit(m.DropGroups(topic=topic, member="", incarnation=0, gids=gids, reason=reason))

    # ------------------------------------------------------------ stages and trainer

    def take(
        self,
        topic: str,
        consumer: str,
        limit: int,
        at_least: int = 1,
        loaded: int | None = None,
        step: int | None = None,
        wait_s: float = 30.0,
        rank: int | None = None,
    ) -> Pending[m.OkTaken]:
        """Lease up to `limit` rows (groups, where that is the consumer's unit), `at_least` so many at once. The reply waits for them up to `wait_s`;
        then its `lease` is -1. `done`: nothing will ever come again. `step`: of a terminal consumer, the version that it trains from. `loaded`: where
        the consumer needs weights. `rank`: where its sampler deals to data-parallel ranks."""
        asked = m.Take(topic=topic, consumer=consumer, member="", incarnation=0, limit=limit, at_least=at_least, loaded=loaded, step=step, rank=rank)
        return self.submit(msgspec.structs.replace(asked, wait_s=wait_s))

    def write_back(
        self,
        topic: str,
        consumer: str,
        lease: int,
        keys: Sequence[tuple[int, int]],
        columns: Mapping[str, Any],
        weights: m.ModelVersion | None = None,
    ) -> m.OkWritten:
        """Write the outputs of a lease, columns aligned with `keys` (gid, row), and acknowledge it."""

        def build(places: dict[str, np.ndarray]) -> m.WriteBack:
            return m.WriteBack(
                topic=topic,
                consumer=consumer,
                member="",
                incarnation=0,
                lease=lease,
                gids=m.packed(gids),
                rows=m.packed([row for _, row in keys]),
                columns=_packed(places),
                weights=weights,
            )

        gids = [gid for gid, _ in keys]
        reply: m.OkWritten = self.publish(gids, columns, self.topic(topic), build, self.timeout_s)
        return reply

    def release(self, topic: str, consumer: str, lease: int) -> Pending[m.OkEmpty]:
        return self.submit(m.Release(topic=topic, consumer=consumer, member="", incarnation=0, lease=lease))

    def renew(self, topic: str, consumer: str, lease: int, within_s: float) -> Pending[m.OkEmpty]:
        """See `messages.Renew`."""
        return self.submit(m.Renew(topic=topic, consumer=consumer, member="", incarnation=0, lease=lease, within_s=within_s))

    def commit(
        self, topic: str, consumer: str, model: str, epoch: int, step: int, leases: list[int], info: dict[str, float] | None = None
    ) -> Pending[m.OkCommitted]:
        return self.submit(
            m.Commit(topic=topic, consumer=consumer, member="", incarnation=0, model=model, epoch=epoch, step=step, leases=leases, info=info or {})
        )

    def published(self, weights: m.ModelVersion) -> Pending[m.OkEmpty]:
        return self.submit(m.Published(weights=weights, member="", incarnation=0))

    # ------------------------------------------------------------ everybody

    def watch(
        self,
        seen: int = -1,
        loaded: dict[str, int] | None = None,
        busy: dict[str, float] | None = None,
        duty_done: str | None = None,
        endpoints: dict[str, str] | None = None,
        wait_s: float = 1.0,
        trace: bytes = b"",
        epochs: dict[str, int] | None = None,
    ) -> Pending[m.OkDirective]:
        """Heartbeat: the directive, at once when it is newer than `seen`, else when it changes or after `wait_s`. `trace` goes to the controller's
        observer as it is, once, when the request arrives; more than MAX_TRACE_BYTES are refused."""
        return self.submit(
            m.Watch(
                member="",
                incarnation=0,
                seen=seen,
                loaded=loaded or {},
                epochs=epochs or {},
                busy=busy or {},
                duty_done=duty_done,
                endpoints=endpoints or {},
                wait_s=wait_s,
                trace=trace,
            )
        )

    def report(self, kind: str, data: dict[str, float | int | str]) -> Pending[m.OkEmpty]:
        return self.submit(m.Report(member="", incarnation=0, kind=kind, data=data))

    def failed(self, error: str, traceback: str) -> Pending[m.OkEmpty]:
        return self.submit(m.Failed(member="", incarnation=0, error=error, traceback=traceback))

    # ------------------------------------------------------------ outsiders

    def member_dead(self, member: str, cause: str, incarnation: int = -1, fatal: bool = False) -> Pending[m.OkEmpty]:
        """Death notice about another member, from whoever saw its process end."""
        return self.submit(m.MemberDead(member=member, incarnation=incarnation, cause=cause, fatal=fatal))

    def stop(self, reason: str) -> Pending[m.OkEmpty]:
        return self.submit(m.Stop(reason=reason))

    def status(self, waits: bool = False) -> Pending[m.OkStatus]:
        """`waits`: with a report of who waits for what since when."""
        return self.submit(m.Status(waits=waits))


def _packed(places: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {name: m.packed(table) for name, table in places.items()}
