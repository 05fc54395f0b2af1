"""The rollout contract over vLLM's own processes: they decode on, `chunks` fetches what came.

What vLLM leaves open is closed here: requests are checked before it sees them, weights are complete before they are loaded, a request without a token
starts with the newest weights, and when its processes die they are started anew with weights as new as those that served, and every request goes on
where it was.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from asyncflow.contracts.rollout import Capacity, Chunk, PauseMode, Request, WeightsNotLoaded
from asyncflow.contracts.weights import WeightsId
from asyncflow.data.stops import folder_stops
from asyncflow.engines.rollout.embedded.admission import Limits
from asyncflow.engines.rollout.vllm.arguments import Shape
from asyncflow.engines.rollout.vllm.expected import ExpectedWeights, meta_model
from asyncflow.engines.rollout.vllm.process import EngineGone, UpdateFailed, VllmProcess
from asyncflow.engines.rollout.vllm.settings import VllmSettings, vllm_settings
from asyncflow.engines.rollout.vllm.staging import Staged, Staging
from asyncflow.engines.rollout.vllm.table import Attempt, RequestTable
from asyncflow.launch.restarts import RestartLimit

if TYPE_CHECKING:
    import torch

    from asyncflow.config import RunConfig


LOOK_S = 1.0  # between two looks at whether vLLM still lives


class EngineCrashed(RuntimeError):
    """vLLM's processes died more often than they may be started anew."""


class VllmRolloutEngine:
    """Implements `asyncflow.contracts.rollout.RolloutEngine`. `name`: whose engine it is (rollout-0), for messages."""

    def __init__(self, name: str, shape: Shape, settings: VllmSettings, stop_token_ids: Sequence[int] = ()) -> None:
        """Reads the model's config.json. `stop_token_ids` end every response; empty: those that the model's files name."""
        network = meta_model(shape.model_dir, shape.dtype)
        self._name, self._shape, self._settings = name, shape, settings
        self._stops = tuple(stop_token_ids) or folder_stops(shape.model_dir)
        self._expected = ExpectedWeights(network)
        self._limits = Limits(shape.width, int(network.config.vocab_size))
        self._table, self._staging = RequestTable(), Staging()
        self._restarts = RestartLimit(settings.restarts, settings.restart_window_s)
        self._process: VllmProcess | None = None
        self._paused = False
        self._dead: str | None = "it was not started: call start()"

    # ---------------------------------------------------------------- life

    def start(self) -> None:
        """Start vLLM's processes. Raises EngineGone when they are not ready in time."""
        self._process = self._new_process()
        self._dead = None

    def _new_process(self) -> VllmProcess:
        process = VllmProcess(self._name, self._shape, self._settings, self._stops, self._table)
        try:
            process.start()
        except BaseException:  # also an interrupt: nothing of it must stay
            process.close("it did not start")
            raise
        return process

    @property
    def pids(self) -> list[int]:
        """vLLM's engine process."""
        return self._alive().pids

    def _alive(self) -> VllmProcess:
        """The process that serves; one that died is replaced. Raises EngineCrashed when it died too often."""
        if self._dead is not None or self._process is None:
            raise RuntimeError(f"the rollout engine cannot be used: {self._dead}")
        cause = self._process.gone()
        if cause is None and not self._paused and self._table.silent_s() > self._settings.silent_s:
            cause = f"it made no token for {self._settings.silent_s:g} s"
        if cause is not None:
            self._recover(cause)
        return self._process

    def _recover(self, cause: str) -> None:
        """Start anew with the weights that served, or newer ones (`Staging.again`); every request goes on with the tokens that it has."""
        assert self._process is not None, "only what was started can die"
        while True:
            self._process.close(cause)
            if not self._restarts.allow():
                self._dead = f"vLLM of {self._name} ended: {cause}"
                limit = f"after {self._restarts.times} restarts within {self._restarts.window_s:g} s it is not started again"
                raise EngineCrashed(f"{self._dead}; {limit}; its log tells more")
            print(f"{self._name}: vLLM ended: {cause}; it is started anew and {len(self._table.unfinished())} requests go on", file=sys.stderr)
            try:
                self._process = self._new_process()
                self._go_on(self._process)
                return
            except (EngineGone, UpdateFailed) as error:
                cause = str(error)

    def _go_on(self, process: VllmProcess) -> None:
        if self._paused:
            process.pause("keep")
        try:
            with self._staging.again(self._settings.reply_s) as staged:
                if staged is not None:
                    process.update(staged)
                    self._staging.serve(staged)
        except TimeoutError as error:
            raise EngineGone(str(error)) from error
        self._table.listen()
        if unfinished := self._table.unfinished():
            process.submit(self._table.again(unfinished, self._serving))

    def close(self) -> None:
        """End vLLM's processes; requests that have not finished are gone. Idempotent."""
        self._dead = "it was closed"
        if self._process is not None:
            self._process.close()
        self._staging.close()

    def release_memory(self) -> None:
        raise NotImplementedError("the vLLM engine does not give its memory back between steps: place trainer and rollout on devices of their own")

    def restore_memory(self) -> None:
        """`release_memory` released none."""

    # ---------------------------------------------------------------- requests

    def generate(self, requests: Sequence[Request]) -> None:
        """Queue all of `requests` or, with a ValueError that names the first bad one, none."""
        process, known = self._alive(), self._table.known()
        self._limits.check(requests, known, self.loaded)
        if len(known) + len(requests) > self._settings.max_queued:
            came = f"{len(known)} requests have not ended and {len(requests)} more came"
            raise ValueError(f"max_queued = {self._settings.max_queued} is exceeded: {came}; none of these was queued; call chunks() until they fit")
        self._submit(process, self._table.add(requests, self._serving))

    def _submit(self, process: VllmProcess, attempts: Sequence[Attempt]) -> None:
        try:
            process.submit(attempts)
        except EngineGone as error:
            self._recover(str(error))  # they are in the table: they go on like all others

    @property
    def _serving(self) -> WeightsId:
        """Of attempts that start now."""
        assert self.loaded is not None, "no request is taken before"
        return self.loaded

    def chunks(self, wait_s: float = 0.0) -> list[Chunk]:
        """What came, after a wait of at most `wait_s` (seconds) for the first. Raises EngineCrashed when vLLM died too often."""
        self._alive()
        return self._table.take(0.0 if self._paused else wait_s)

    def next_chunk_s(self) -> float:
        return self._table.next_chunk_s()

    def abort(self, ids: Sequence[str]) -> None:
        """Returns when every one of them has ended, so that the next `chunks` has its last chunk."""
        self._do(lambda process: self._abort(process, ids))

    def _abort(self, process: VllmProcess, ids: Sequence[str]) -> None:
        process.abort(self._table.keys(ids))
        if not self._table.ended(ids, self._settings.reply_s):
            raise EngineGone(f"vLLM of {self._name}: it did not end aborted requests within {self._settings.reply_s:g} s")

    def _do(self, act: Callable[[VllmProcess], None]) -> None:
        """As often as it takes until an engine has done it."""
        while True:
            process = self._alive()
            try:
                act(process)
                return
            except EngineGone as error:
                self._recover(str(error))

    def capacity(self) -> Capacity:
        running, queued = self._table.counts()
        return Capacity(self._shape.slots, max(0, self._shape.slots - running - queued), running, queued, parts=True)

    # ---------------------------------------------------------------- weights

    def pause(self, mode: PauseMode = "keep") -> None:
        """Nothing decodes afterwards. keep: running requests stay; wait: they are run to their end first, those that wait stay; abort: all end.

        After a load it first waits for one decode step: updates that come faster than vLLM decodes would otherwise stop it for good."""
        if self._paused:
            self._table.listen()  # it was silent because it was paused
        else:
            while not self._table.stepped(LOOK_S):
                self._alive()
        self._do(lambda process: process.pause(mode))
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._table.listen()
        self._do(VllmProcess.resume)

    def load_weights(self, weights: WeightsId, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Running requests go on with the new weights (`on_update` says with which keys and values); those without a token start with them.

        Raises ValueError on a set that is not complete or does not fit, or on an older id than the loaded one; WeightsNotLoaded when vLLM fails while
        it loads. The weights from before then go on serving. (Where they are not in memory any more, a new engine gets these by itself.)
        """
        self._alive()
        if self.loaded is not None and weights < self.loaded:
            rule = f"older than the loaded {self.loaded}, which goes on serving"
            raise ValueError(f"weights {weights} are refused: {rule}; load a newer (epoch, version), or build a new engine")
        staged = self._staging.stage(weights, tensors)
        paused_before = self._paused
        try:
            self._expected.check(staged)
            if not paused_before:
                self.pause("keep")
            self._load(staged)
        finally:
            if not self._staging.serves(staged):
                staged.let_go()
            if self._paused and not paused_before and self._dead is None:
                self.resume()

    def _load(self, staged: Staged) -> None:
        def load(process: VllmProcess) -> None:
            waiting = self._table.without_token()
            keys = self._table.keys(waiting)
            attempts = self._table.again(waiting, staged.weights)  # they start with these weights, from their prefill on
            process.abort(keys)
            process.update(staged)
            self._staging.serve(staged)
            process.submit(attempts)

        try:
            self._do(load)
        except UpdateFailed as error:
            self._recover(str(error))
            if self.loaded is None or self.loaded < staged.weights:  # else it was the newest there is, and the new engine has it
                problem = f"{staged.weights} could not be loaded by vLLM of {self._name} ({error})"
                raise WeightsNotLoaded(f"{problem}; {self.loaded} serves again") from error
        self._table.await_step()
        self._table.listen()

    @property
    def loaded(self) -> WeightsId | None:
        return self._staging.loaded


def make_vllm(config: RunConfig, model_dir: Path, worker: str) -> VllmRolloutEngine:
    """For `rollout.engine`; `rollout.options` are `VllmSettings`."""
    rollout = config.rollout
    shape = Shape(model_dir, config.models["policy"].dtype, rollout.slots, rollout.cache_width)
    return VllmRolloutEngine(worker, shape, vllm_settings(rollout.options), rollout.stop_token_ids)
