"""One life of vLLM: an `AsyncLLM` with its event loop in a thread here, and its engine and worker processes beside us.

When any of them is gone, or does not answer by a deadline, this life is over and says so (`EngineGone`); what comes next is the owner's to decide.
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import os
import threading
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from asyncflow.contracts.rollout import PauseMode
from asyncflow.engines.rollout.vllm.arguments import Shape, engine_arguments, forget_environment, sampling, set_environment
from asyncflow.engines.rollout.vllm.settings import VllmSettings
from asyncflow.engines.rollout.vllm.staging import Staged
from asyncflow.engines.rollout.vllm.table import FINISHES, Attempt, Delta, RequestTable
from asyncflow.engines.rollout.vllm.traces import new_folder, remove_traces, segments_of
from asyncflow.launch.child import cause_of

T = TypeVar("T")
Start = tuple[int, int, int]  # epoch, version, index of the first token of an attempt that they made
IDLE_TURNS = 4  # turns of the event loop without any output: what was on its way has arrived
END_S = 2.0  # for processes that were told to end
OPENING_S = 60.0  # for a start that was given up
LOOK_S = 0.5  # between two looks whether who is to answer is there
ENGINE = "EngineCore"  # how vLLM names its engine process


class EngineGone(RuntimeError):
    """vLLM's processes cannot be used any more."""


class UpdateFailed(RuntimeError):
    """vLLM failed while it loaded a version."""


class VllmProcess:
    """Called by one thread. `table` hears what requests come to."""

    def __init__(self, name: str, shape: Shape, settings: VllmSettings, stops: tuple[int, ...], table: RequestTable) -> None:
        self._name, self._shape, self._settings, self._stops, self._table = name, shape, settings, stops, table
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._before: set[multiprocessing.process.BaseProcess] = set()
        self._children: list[multiprocessing.process.BaseProcess] = []
        self._opened = threading.Event()
        self._llm: Any = None
        self._gone: str | None = None  # why, in words
        self._ident, self._folder = "", ""  # what the files of its processes are named after, and where their sockets are
        self._held: int | None = None  # a descriptor that keeps that folder ours
        self._segments: set[str] = set()  # shared memory that they talk through
        self._serving = (0, 0)  # epoch and version of the weights that were loaded last
        self._outputs = 0  # deltas that came, to see whether any still come

    # ---------------------------------------------------------------- life

    def start(self) -> None:
        """Raises EngineGone when vLLM is not ready after `start_s`, or its processes ended, or there is no place for its sockets; ValueError and the
        like for what vLLM refuses."""
        try:
            self._folder, self._held = new_folder()
        except OSError as error:
            raise EngineGone(f"vLLM of {self._name} did not start: {error}") from error
        set_environment(self._settings, self._folder)
        self._before = set(multiprocessing.active_children())
        self._thread.start()
        try:
            self._ask(self._open(), self._settings.start_s, "start")
        except RuntimeError as error:  # vLLM's word for an engine process that ended
            raise EngineGone(f"vLLM of {self._name} did not start: {error}") from error
        finally:
            self._look_for_children()
        self._segments = {name for pid in self.pids for name in segments_of(pid)}

    async def _open(self) -> None:
        try:
            from vllm.v1.engine.async_llm import AsyncLLM

            if self._gone is None:  # else it took too long to import
                self._llm = AsyncLLM.from_engine_args(engine_arguments(self._shape, self._settings))
                self._ident = (await self._llm.collective_rpc("asyncflow_ident"))[0]
                await self._llm.get_supported_tasks()  # asked once: from now on a request is known to vLLM as soon as it is added
        finally:
            self._opened.set()

    def _look_for_children(self) -> None:
        """Not whatever else this process started meanwhile."""
        found = multiprocessing.active_children()
        self._children = [child for child in found if child not in self._before and child.name.startswith(ENGINE)]

    @property
    def pids(self) -> list[int]:
        """The engine process; its workers are its children."""
        return [child.pid for child in self._children if child.pid is not None]

    def gone(self) -> str | None:
        """Why this life is over; None while it is not."""
        if self._gone is None and self._llm is not None and self._llm.errored:
            self._gone = f"its engine process {self._causes()}"
        return self._gone

    def _causes(self) -> str:
        for child in self._children:
            child.join(END_S)  # its end was noticed before its exit code is there
        found = [f"{child.pid}: {cause_of(child.exitcode)}" for child in self._children if child.exitcode is not None]
        return ", ".join(found) or f"{self.pids} says that it cannot go on (see its log)"

    def close(self, reason: str = "it was closed") -> None:
        """End its processes and its thread, whatever state they are in. Idempotent."""
        self._gone = self._gone or reason
        if self._loop.is_closed():
            return
        self._give_up_opening()
        self._loop.call_soon_threadsafe(self._cancel)
        llm, self._llm = self._llm, None
        if llm is not None:
            llm.shutdown(timeout=0.0)  # told to end, they take longer than END_S every time
        self._kill_children()
        remove_traces(self._ident, self._folder, self._segments)
        if self._held is not None:
            os.close(self._held)
            self._held = None
        forget_environment(self._folder)
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(END_S)
        if not self._thread.is_alive():
            self._loop.close()

    def _give_up_opening(self) -> None:
        """A start that took too long blocks the thread until vLLM's engine process is gone, which may not even be there yet."""
        deadline = time.monotonic() + OPENING_S
        while self._thread.is_alive() and not self._opened.wait(0.2) and time.monotonic() < deadline:
            self._look_for_children()
            self._kill_children()

    def _kill_children(self) -> None:
        """The engine process and its workers: they hold nothing that outlives them. Workers of an engine process that is gone end themselves."""
        for child in self._children:
            if child.is_alive() and child.pid is not None:
                from vllm.utils.system_utils import kill_process_tree

                kill_process_tree(child.pid)
                child.join(END_S)

    def _cancel(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()

    # ---------------------------------------------------------------- requests

    def submit(self, attempts: Sequence[Attempt]) -> None:
        """In this order."""
        if attempts:
            self._ask(self._submit(attempts), self._settings.reply_s, "take requests")

    async def _submit(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            task = self._loop.create_task(self._follow(attempt))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await asyncio.sleep(0)  # every task has made its first step: an abort that comes after this finds its request

    async def _follow(self, attempt: Attempt) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            await self._generate(attempt)
        except EngineDeadError:
            self._table.wake()  # `gone` says why
        except Exception as error:  # whatever vLLM raises for a request: carried to the worker's loop
            if self._gone is None and self._llm is not None and not self._llm.errored:  # else it is one more sign of that
                self._table.fail(RuntimeError(f"vLLM refused request {attempt.request.id!r} of {self._name}: {type(error).__name__}: {error}"))

    async def _generate(self, attempt: Attempt) -> None:
        from vllm.inputs.engine import tokens_input

        prompt = tokens_input(list(attempt.request.token_ids), cache_salt=attempt.salt)
        queue = await self._llm.add_request(attempt.key, prompt, sampling(attempt, self._stops))
        state = self._llm.output_processor.request_states.get(queue.request_id)  # which tokens have which version, long before the last output
        starts: list[Start] = []  # for a vLLM that does not tell: what serves when tokens come made them, for a load waits until all have come
        made, finished = 0, False
        while not finished:
            output = queue.get_nowait() or await queue.get()
            finished = output.finished
            self._outputs += 1
            completion = output.outputs[0]
            if completion.token_ids and (not starts or starts[-1][:2] != self._serving):
                starts.append((*self._serving, made))
            made += len(completion.token_ids)
            self._table.absorb(attempt, _delta(attempt, completion, state, starts))

    def abort(self, keys: Sequence[str]) -> None:
        if keys:
            self._ask(self._llm.abort(list(keys)), self._settings.reply_s, "abort")

    # ---------------------------------------------------------------- weights

    def pause(self, mode: PauseMode) -> None:
        """Afterwards nothing decodes, and the table knows every token that was made."""
        self._ask(self._pause(mode), None if mode == "wait" else self._settings.reply_s, f"pause({mode!r})")

    async def _pause(self, mode: PauseMode) -> None:
        # clear_cache makes vLLM compute running requests' keys and values anew, and forget the prefix cache. Where they are kept, the salt of an
        # attempt keeps those of other weights apart.
        await self._llm.pause_generation(mode=mode, clear_cache=mode != "keep" or self._settings.on_update == "recompute")
        idle, seen = 0, self._outputs
        while idle < IDLE_TURNS:
            await asyncio.sleep(0)
            idle = idle + 1 if self._outputs == seen and self._llm.engine_core.outputs_queue.empty() else 0
            seen = self._outputs

    def update(self, staged: Staged) -> None:
        """Load a version into every worker; tokens from here on are labelled with it. Raises UpdateFailed for whatever vLLM says, and then the model
        may be of two versions: end this life."""
        try:
            self._ask(self._update(staged), self._settings.reply_s, f"load {staged.weights}")
        except EngineGone:
            raise
        except Exception as error:  # vLLM's own errors have no common base
            raise UpdateFailed(f"it failed to load {staged.weights}: {error}") from error

    async def _update(self, staged: Staged) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await self._llm.start_weight_update()
        await self._llm.update_weights(WeightTransferUpdateRequest(update_info=staged.address.plain()))
        await self._llm.finish_weight_update(weight_version=f"{staged.weights.epoch}.{staged.weights.version}")
        self._serving = staged.weights.epoch, staged.weights.version

    def resume(self) -> None:
        self._ask(self._llm.resume_generation(), self._settings.reply_s, "resume")

    # ---------------------------------------------------------------- the event loop

    def _ask(self, work: Coroutine[Any, Any, T], within_s: float | None, what: str) -> T:
        """Do it on the loop's thread. `within_s` None: for as long as tokens come. Raises EngineGone when it is not done in time, or the engine
        died."""
        from vllm.v1.engine.exceptions import EngineDeadError

        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return self._awaited(future, within_s)
        except TimeoutError:
            future.cancel()
            self._gone = self.gone() or f"it did not {what} within {within_s or self._settings.silent_s:g} s"
        except EngineDeadError:
            self._gone = self.gone() or f"it died while it was asked to {what}"
        raise EngineGone(f"vLLM of {self._name}: {self._gone}")

    def _awaited(self, future: Future[T], within_s: float | None) -> T:
        """Raises TimeoutError, also when the engine died: who waits for an answer of its processes is not told that by vLLM."""
        end = math.inf if within_s is None else time.monotonic() + within_s
        while not wait([future], max(0.0, min(LOOK_S, end - time.monotonic()))).done:
            silent = within_s is None and self._table.silent_s() > self._settings.silent_s
            if silent or time.monotonic() >= end or self.gone() is not None:
                raise TimeoutError
        return future.result()


def _delta(attempt: Attempt, completion: Any, state: Any, seen: Sequence[Start] = ()) -> Delta:
    """vLLM's CompletionOutput in our words. `seen`: where versions begin, for a vLLM before 0.32, whose outputs do not say so."""
    token_ids = list(completion.token_ids)
    logprobs = list(completion.logprobs.logprobs) if token_ids else []
    if len(logprobs) != len(token_ids):
        raise RuntimeError(f"{len(token_ids)} tokens came with {len(logprobs)} log-probabilities: one each is needed, a missing one is never 0")
    if not all(map(math.isfinite, logprobs)):
        raise RuntimeError(f"log-probabilities {logprobs[:8]} are not finite, so its weights are not either: nothing can be trained on them")
    spans = getattr(completion, "weight_versions", None)
    if spans is not None:
        starts = [_start(span.version, span.start) for span in spans]
    elif hasattr(state, "weight_version_starts"):
        starts = [_start(version, start) for version, start in state.weight_version_starts]
    else:
        starts = list(seen)
    reason = completion.finish_reason
    if reason is not None and reason not in FINISHES:
        raise RuntimeError(f"it ended as {reason!r}, which is none of {', '.join(FINISHES)}")
    return Delta(token_ids, logprobs, starts or [(attempt.weights.epoch, attempt.weights.version, 0)], None if reason is None else FINISHES[reason])


def _start(label: str, start: int) -> Start:
    """`label`: what `update` gave the weights."""
    epoch, _, version = label.partition(".")
    return int(epoch), int(version), start
