"""Every trainer rank walks the same tensors: the root yields them whole, one at a time, the others take part and yield nothing.

Who walks alone waits for the others until the deadline; so a walk starts with a word of the root to all, and ends with one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from checkpoint_engine.sharded.entries import Selection, select
from checkpoint_engine.sharded.exchange import DONE, FAILED, GO, HELD, LATER, Exchange, WalkBroken
from checkpoint_engine.sharded.follow import follow
from checkpoint_engine.sharded.lead import Lead
from checkpoint_engine.sharded.names import Naming, base_name
from checkpoint_engine.walking import Take, WalkAbandoned


class ShardedWalk:
    """Whole tensors of a sharded model, again and again. Make it on every rank of `group`, after the model was sharded.

    `source`: the module, or what makes a state dict of it (`keep_vars=True`, or tied weights are not seen). `dtype`: what floats leave in
    (None: as they are), but for names that match a pattern of `keep_dtype`. `unstack_experts`: see experts.py. `prefetch`: tensors on their way
    while one is read; see `Gather` for the memory. `timeout_s`: the longest that a rank waits for another's next step, which includes what the
    consumer takes for a tensor. `commit_timeout_s`: what it may take beyond that after the last tensor, until the version counts as handed over.
    Raises ValueError, TypeError as `select` does.
    """

    def __init__(
        self,
        source: torch.nn.Module | Callable[[], Mapping[str, Any]],
        *,
        naming: Naming = base_name,
        dtype: torch.dtype | None = None,
        keep_dtype: Sequence[str] = (),
        unstack_experts: bool = False,
        group: dist.ProcessGroup | None = None,
        root: int = 0,
        prefetch: int = 1,
        timeout_s: float = 60.0,
        commit_timeout_s: float = 120.0,
    ) -> None:
        if prefetch < 0:
            raise ValueError(f"prefetch = {prefetch} is below 0: nothing could be read; 0 gathers a tensor when it is asked for")
        self._source, self._naming, self._dtype, self._keep_dtype, self._prefetch = source, naming, dtype, tuple(keep_dtype), prefetch
        self._unstack_experts, self._commit_timeout_s = unstack_experts, commit_timeout_s
        self._exchange = Exchange(group, root, timeout_s, _device(self.select()))
        self._check_root()

    @property
    def is_root(self) -> bool:
        return self._exchange.rank == self._exchange.root

    def select(self) -> Selection:
        """What a walk would publish now: names, dtypes, tied names. Nothing is gathered."""
        source = self._source if isinstance(self._source, torch.nn.Module) else self._source()
        return select(source, self._naming, self._dtype, self._keep_dtype)

    def _check_root(self) -> None:
        root = self._exchange.root
        for entry in self.select().entries if self.is_root else ():
            if isinstance(entry.tensor, DTensor) and root not in entry.tensor.device_mesh.mesh:
                ranks = entry.tensor.device_mesh.mesh.tolist()
                raise ValueError(f"{entry.name!r} lies on ranks {ranks}, and the root is {root}: nobody sends to it; make one of those the root")

    def tensors(self) -> Generator[tuple[str, torch.Tensor]]:
        """On the root (name, whole tensor), each lent until the next is asked for: copy it. On the others nothing; they return when the root is
        through. Close it if you stop in the middle: the others wait.

        Raises WalkBroken when a rank went, hangs or walks something else; on the others WalkAbandoned when the root stopped.
        """
        if not self.is_root:
            if not self._follow(0.0):
                raise WalkAbandoned(f"{self._exchange}: the root does not walk now: nothing was sent; walk when it does")
            return
        lead = self._lead()
        try:
            yield from lead.tensors()
        except BaseException:  # closed in the middle too: whatever it was, the others must not wait for it
            with contextlib.suppress(WalkBroken):
                lead.conclude(FAILED)
            raise
        lead.conclude(DONE)

    def hand_over(self, take: Take, wait_s: float = 0.0, held: Callable[[], bool] = lambda: False) -> bool:
        """See `walking.Walk`. Raises WalkBroken when a rank went, hangs or walks something else."""
        if not self.is_root:
            return self._follow(wait_s)
        lead = self._lead()
        try:
            taken = take(lead.tensors)
            if taken and not lead.began:
                raise RuntimeError(f"{self._exchange}: a version that was not walked is called taken: the other ranks sent nothing; hand it over")
        except BaseException:  # whatever it was, the others must not wait for it
            with contextlib.suppress(WalkBroken):
                lead.conclude(HELD if held() else FAILED)
            raise
        lead.conclude(DONE if taken else LATER)
        return taken

    def _lead(self) -> Lead:
        return Lead(self._exchange, self.select, self._prefetch, self._unstack_experts)

    def _follow(self, wait_s: float) -> bool:
        """Take part in one hand-over of the root's. `wait_s`: how long it may wait before it walks."""
        try:
            selection = self.select()
        except BaseException:  # whatever it was, the others must not wait for this rank
            with contextlib.suppress(WalkBroken):
                self._exchange.agree(FAILED, 0, wait_s)  # no plan is 0: the others hear that this rank walks something else
            raise
        said = self._exchange.agree(GO, selection.fingerprint(), wait_s)
        if said == GO:
            follow(selection.entries, self._exchange, self._prefetch)
            said = self._exchange.tell(said, self._commit_timeout_s)
        if said in (FAILED, HELD):
            raise WalkAbandoned(_TOLD[said].format(self._exchange, self._exchange.root), pending=said == HELD)
        return said == DONE


_TOLD = {
    FAILED: "{}: rank {} did not take the version: it is not published; its error says why",
    HELD: "{}: rank {} did not take the version: it is still pending there; its error says why",
}


def _device(selection: Selection) -> torch.device:
    """Where the ranks' messages lie: the mesh's kind of device, which need not be where offloaded parts are."""
    kind = next((entry.tensor.device_mesh.device_type for entry in selection.entries if isinstance(entry.tensor, DTensor)), "cpu")
    return torch.device("cpu") if kind == "cpu" else torch.device(kind, torch.get_device_module(kind).current_device())
