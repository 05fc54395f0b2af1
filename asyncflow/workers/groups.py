"""Groups in the making at one replica: which requests belong to which group, and what each has generated so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from asyncflow.contracts.rollout import Chunk, Finish, Request, Sampling
from asyncflow.engines.seeds import sample_seed
from asyncflow.workers import unfinished
from asyncflow.workers.unfinished import Epochs, Tokens, add_made
from transfer_queue.messages import GroupLease, HandedBack, ProgressItem


class Trajectory(msgspec.Struct):
    """One sample of a group while it is generated: token ids as sampled, their log-probabilities and versions."""

    gid: int
    row: int
    prompt: list[int]
    token_ids: list[int] = []
    logprobs: list[float] = []
    versions: list[int] = []  # one a token
    epochs: Epochs = {}  # of the weights that made them
    finish: Finish | None = None

    def absorb(self, chunk: Chunk) -> None:
        self.token_ids += chunk.token_ids
        self.logprobs += chunk.logprobs
        self.versions += [chunk.version] * len(chunk.token_ids)
        if chunk.token_ids:
            add_made(self.epochs, chunk.epoch, chunk.version, chunk.version)
        self.finish = chunk.finish


class OpenGroup(msgspec.Struct):
    gid: int
    fence: int
    total: int  # rows of the whole group, those of earlier attempts included
    pending: dict[int, Trajectory]  # by row
    tokens: int = 0  # made by this attempt
    oldest_version: int | None = None  # of its rows' tokens, those included that another attempt handed back


class Left(msgspec.Struct, frozen=True):
    """A group that is given back, with what it has of unfinished rows."""

    item: HandedBack
    data: bytes  # `unfinished.encode`; b"": nothing to go on from
    group: OpenGroup


class GroupBook:
    """The groups this replica holds leases on. Row numbers and fences in, requests out; chunks in, finished trajectories out."""

    def __init__(self, run_seed: int, sampling: Sampling, budget: int, rows_per_group: int) -> None:
        self._run_seed, self._sampling, self._budget, self._rows_per_group = run_seed, sampling, budget, rows_per_group
        self._groups: dict[int, OpenGroup] = {}
        self._requests: dict[str, tuple[int, int]] = {}  # request id -> (gid, row)

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def unfinished(self) -> int:
        """Rows that are generated or wait for a slot, those that a pause has aborted and that are about to be resumed included."""
        return len(self._requests)

    def __contains__(self, gid: int) -> bool:
        return gid in self._groups

    def admit(self, lease: GroupLease, prompt: list[int], left: Mapping[int, Tokens] | None = None) -> list[Request]:
        """Requests for the rows that are missing; those that another attempt began (`left`, by row) go on from its tokens. The id carries the fence:
        a later attempt of the same group is another request.

        The caller has called `forget` for an older attempt of this gid, if the book still had one.
        """
        begun = left or {}
        pending = {row: Trajectory(lease.gid, row, prompt, *begun.get(row, ([], [], [], {}))) for row in lease.rows}
        oldest = min((trajectory.versions[0] for trajectory in pending.values() if trajectory.versions), default=None)
        self._groups[lease.gid] = OpenGroup(lease.gid, lease.fence, self._rows_per_group, pending, oldest_version=oldest)
        return [self._request(trajectory, lease.fence, lease.min_version, lease.epoch) for trajectory in pending.values()]

    def _request(self, trajectory: Trajectory, fence: int, min_version: int = 0, epoch: int = 0) -> Request:
        """What is left to generate: prompt and tokens so far go in, the budget is what they left of it. Weights: as new as those of its last token or
        newer; without a token as (`epoch`, `min_version`)."""
        if trajectory.versions:
            min_version, epoch = trajectory.versions[-1], max(trajectory.epochs)
        request_id = f"{trajectory.gid}/{trajectory.row}/{fence}/{len(trajectory.token_ids)}"
        self._requests[request_id] = (trajectory.gid, trajectory.row)
        return Request(
            request_id,
            (*trajectory.prompt, *trajectory.token_ids),
            self._sampling,
            sample_seed(self._run_seed, trajectory.gid, trajectory.row),
            self._budget - len(trajectory.token_ids),
            min_version,
            epoch,
        )

    def resume(self, chunk: Chunk) -> Request | None:
        """For one that ends a request of ours as aborted: the rest of it."""
        if chunk.finish != "aborted" or chunk.id not in self._requests:
            return None
        gid, row = self._requests.pop(chunk.id)
        trajectory = self._groups[gid].pending[row]
        trajectory.finish = None
        return self._request(trajectory, self._groups[gid].fence)

    def absorb(self, chunk: Chunk) -> Trajectory | None:
        """Take a chunk in. Returns the trajectory when it is finished, None while it runs or when its group is gone."""
        known = self._requests.get(chunk.id)
        if known is None:
            return None
        gid, row = known
        group = self._groups[gid]
        trajectory = group.pending[row]
        trajectory.absorb(chunk)
        group.tokens += len(chunk.token_ids)
        if group.oldest_version is None and chunk.token_ids:
            group.oldest_version = chunk.version  # versions never decrease, so the first is the oldest
        if chunk.finish is None or chunk.finish == "aborted":
            return None
        del self._requests[chunk.id]
        del group.pending[row]
        return trajectory

    def close_if_complete(self, gid: int) -> OpenGroup | None:
        """Forget and return the group once its last row is finished."""
        group = self._groups[gid]
        return None if group.pending else self._groups.pop(gid)

    def fence(self, gid: int) -> int | None:
        """The fence of the attempt at hand, None when the group is not here."""
        group = self._groups.get(gid)
        return None if group is None else group.fence

    def forget(self, attempts: Iterable[tuple[int, int]]) -> list[str]:
        """Attempts (gid, fence) that are no longer ours; a newer attempt of the same gid stays. Returns the request ids to abort; their last
        chunks are then ignored."""
        gone = {gid for gid, fence in attempts if self.fence(gid) == fence}
        for gid in gone:
            del self._groups[gid]
        if not gone:
            return []
        ids = [request_id for request_id, (gid, _) in self._requests.items() if gid in gone]
        for request_id in ids:
            del self._requests[request_id]
        return ids

    def hand_back(self) -> tuple[list[Left], list[str]]:
        """Everything: the groups, with what each has of unfinished rows, and the ids of their requests."""
        left = [_left(group) for group in self._groups.values()]
        ids = list(self._requests)
        self._groups.clear()
        self._requests.clear()
        return left, ids

    def keep(self, group: OpenGroup) -> list[Request]:
        """A group that nobody takes back is here again; its requests go on where they were."""
        self._groups[group.gid] = group
        return [self._request(trajectory, group.fence) for trajectory in group.pending.values()]

    def progress(self, loaded: int) -> list[ProgressItem]:
        """`loaded`: the version that makes the next token, and so the first of a group that has none."""
        return [
            ProgressItem(group.gid, group.fence, group.tokens, loaded if group.oldest_version is None else group.oldest_version)
            for group in self._groups.values()
        ]


def _left(group: OpenGroup) -> Left:
    rows = [(row, (had.token_ids, had.logprobs, had.versions, had.epochs)) for row, had in group.pending.items()]
    made: Epochs = {}
    for had in group.pending.values():
        for epoch, (low, high) in had.epochs.items():
            add_made(made, epoch, low, high)
    oldest, newest = min((low for low, _ in made.values()), default=0), max((high for _, high in made.values()), default=0)
    item = HandedBack(group.gid, group.fence, group.tokens, oldest, newest, left=None, epochs=made)
    return Left(item, unfinished.encode(rows), group)
