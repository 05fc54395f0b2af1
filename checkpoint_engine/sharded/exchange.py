"""What the ranks of a walk say to one another: few words to all, tensors' bytes from each rank to the root. Every wait has a deadline.

Bytes go by point-to-point messages, not by all_gather: only the root needs the whole, uneven parts need no padding, and whoever holds a replica
that nobody needs sends nothing. Messages between two ranks arrive in the order in which they were sent; both sides walk in the same order.

On a CPU (gloo) the deadline is `timeout_s`. On devices a wait is an order between streams, and the deadline is the process group's own, which
torch's watchdog enforces (never run on a device). A killed gloo peer is noticed at once by whoever talks to it, a stopped one at the deadline.
Whoever notices closes its own connections, so that the others hear at once, and so on: nobody waits for a rank that has given up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from checkpoint_engine.collective import GroupError

GO, LATER, DONE, FAILED, HELD = range(5)
"""What the root says. Before a walk GO; instead of one, or after it: DONE (the copy was taken), LATER (not now: it stays pending), FAILED (it raised,
and the version is given up), HELD (it raised, and the version stays pending)."""
_NEVER = 0x7A11  # a tag that nobody sends under


class WalkBroken(GroupError):
    """A rank went, hangs, or walks something else: the process group cannot be used any more."""


class Sending:
    """Messages on their way. Not done before `wait` returned."""

    def __init__(self, works: Sequence[tuple[str, dist.Work]], timeout_s: float | None, broken: Callable[[], None] = lambda: None) -> None:
        """`works`: (what it is, for the error, its operation). `timeout_s` None: ordered by streams. `broken`: called before
        WalkBroken is raised."""
        self._works, self._timeout_s, self._broken = works, timeout_s, broken

    def wait(self) -> None:
        """Raises WalkBroken, at the latest after the deadline, with what did not arrive and who was to send or take it."""
        for what, work in self._works:
            problem = ""
            try:
                done = work.wait() if self._timeout_s is None else work.wait(timedelta(seconds=self._timeout_s))
                problem = "" if done else "it did not end"
            except RuntimeError as error:  # torch raises nothing finer
                problem = str(error).splitlines()[0][:200]
            if problem:
                self._broken()
                raise WalkBroken(f"{what}, within {self._timeout_s} s: that rank went, hangs, or gave up itself ({problem})")


class Exchange:
    """One rank's end. `root`: the rank of the world that gathers; `device`: where bytes travel from and to."""

    def __init__(self, group: dist.ProcessGroup | None, root: int, timeout_s: float, device: torch.device) -> None:
        self._group = dist.group.WORLD if group is None else group
        self.device = device
        self.rank, self.root = dist.get_rank(), root
        self._ranks = dist.get_process_group_ranks(self._group)
        if root not in self._ranks or self.rank not in self._ranks:
            raise ValueError(f"rank {self.rank} or root {root} is not in the group of ranks {self._ranks}: they cannot meet; pass their group")
        self._timeout_s = timeout_s

    def __str__(self) -> str:
        return f"rank {self.rank} of {len(self._ranks)}"

    def agree(self, word: int, plan: int, extra_s: float = 0.0) -> int:
        """Before a walk: everybody tells (word, fingerprint of what it walks); the root's word is returned, and only the root's counts.

        Raises WalkBroken when the root says GO and somebody's plan is another, on every rank: nothing was sent yet, and the group stays usable.
        """
        own = torch.tensor([word, plan], dtype=torch.int64, device=self.device)
        told = [torch.empty_like(own) for _ in self._ranks]
        what = f"{self}: before the walk some rank told nothing"
        self._started(what, lambda: dist.all_gather(told, own, group=self._group, async_op=True), extra_s).wait()
        words = dict(zip(self._ranks, (tuple(pair.tolist()) for pair in told), strict=True))
        said, plan_of_root = words[self.root]
        others = [rank for rank, (_, plan) in words.items() if plan != plan_of_root]
        if said == GO and others:
            raise WalkBroken(
                f"{self}: ranks {others} walk other tensors than rank {self.root} (names, shapes, dtypes or placements differ): nothing was sent; "
                f"build and shard the model alike on every rank"
            )
        return int(said)

    def tell(self, word: int, extra_s: float = 0.0) -> int:
        """After a walk: the root's word to everybody. `extra_s`: how long the root may take for it, beyond the deadline of a step."""
        message = torch.tensor([word], dtype=torch.int64, device=self.device)
        what = f"{self}: after the walk rank {self.root} did not tell whether it is through"
        self._started(what, lambda: dist.broadcast(message, self.root, group=self._group, async_op=True), extra_s).wait()
        return int(message.item())

    def receive(self, name: str, parts: Sequence[tuple[int, torch.Tensor]]) -> Sending:
        """On the root. `parts`: (rank it comes from, where its bytes go, contiguous)."""
        what = [f"{self}: tensor {name!r}: the part of rank {rank} did not come" for rank, _ in parts]
        return self._post(what, [(dist.irecv, rank, part) for rank, part in parts])

    def send(self, name: str, part: torch.Tensor) -> Sending:
        """On the others. `part`: contiguous; not to be changed before the wait is over."""
        return self._post([f"{self}: tensor {name!r}: rank {self.root} did not take this rank's part"], [(dist.isend, self.root, part)])

    def _post(self, what: list[str], messages: list[tuple[Any, int, torch.Tensor]]) -> Sending:
        if not messages:
            return Sending([], 0.0)
        operations = [dist.P2POp(op, part.reshape(-1).view(torch.uint8), peer, self._group) for op, peer, part in messages]
        try:
            works = dist.batch_isend_irecv(operations)
        except RuntimeError as error:  # torch raises nothing finer
            self.leave()
            raise WalkBroken(f"{'; '.join(what)}: it could not start: {str(error).splitlines()[0][:200]}") from error
        if len(works) != len(what):  # a device's batch is one operation
            what = ["; ".join(what)] * len(works)
        return Sending(list(zip(what, works, strict=True)), self._deadline_s(), self.leave)

    def _started(self, what: str, start: Callable[[], dist.Work | None], extra_s: float = 0.0) -> Sending:
        try:
            work = start()
        except RuntimeError as error:  # the connections are closed already
            self.leave()
            raise WalkBroken(f"{what}: it could not start: {str(error).splitlines()[0][:200]}") from error
        return Sending([(what, work)] if work is not None else [], self._deadline_s(extra_s), self.leave)

    def leave(self) -> None:
        """This rank has given up. On a CPU its connections are closed, which everybody notices who waits for it: gloo closes all of them when a wait
        for a message runs out. On devices the others have the process group's deadline."""
        for peer in self._ranks if self.device.type == "cpu" else ():
            with contextlib.suppress(RuntimeError, ValueError):  # it ran out; the connection to that one is closed already; itself
                nothing = dist.irecv(torch.zeros(1, dtype=torch.uint8), peer, group=self._group, tag=_NEVER)
                if nothing is not None:
                    nothing.wait(timedelta(milliseconds=1))

    def _deadline_s(self, extra_s: float = 0.0) -> float | None:
        return self._timeout_s + extra_s if self.device.type == "cpu" else None
