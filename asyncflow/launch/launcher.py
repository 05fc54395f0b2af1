"""`Launcher`: a whole run, wherever its workers are. It starts processes, waits for what becomes of them, and leaves nothing behind.

Order: places (where workers are not simply here), weights of version 0, controller, shards, everybody else. Whoever is killed is started again
within limits: the controller at its address, out of its journal; a shard as a new one. The death of trainer or publisher, and anybody that raises,
end the run. Controller, shards and preparation are always processes of this machine; who starts workers is what launchers differ in (`local`, `ray`).
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path

import msgspec

from asyncflow.config import RunConfig
from asyncflow.contracts.worker import EXPELLED
from asyncflow.flow.core import COMEBACK_S
from asyncflow.launch.absent import Absent
from asyncflow.launch.child import ChildSpec, cause_of, full_disk
from asyncflow.launch.link import LOST, WATCH_S, ControllerLink
from asyncflow.launch.nursery import Begin, Nursery, Process
from asyncflow.launch.plan import PREPARE, client_key, log_of, shard_specs, worker_specs
from asyncflow.launch.prepare import with_paths
from asyncflow.observe.environment import write_environment
from asyncflow.observe.records import COMPLETED, CONTROLLER_URL, INTERRUPTED
from transfer_queue.operation.signals import Signals

CONTROLLER = "controller"

Say = Callable[[str], None]
Workers = Callable[[RunConfig, str, str | None], list[ChildSpec]]  # (configuration, controller's URL, key file) → what to start


class RunFailed(Exception):
    """The run is over, for this reason."""


class Launcher:
    """One run. `run` returns the exit reason: "completed", "interrupted", or what went wrong."""

    def __init__(
        self, config: RunConfig, say: Say, begin: Begin, tick: Callable[[], None] = lambda: None, workers: Workers = worker_specs
    ) -> None:
        """`config.run.dir` exists. `say` prints one line for people; `begin` starts a process; `tick` is called after every wait, at least once a
        second. `workers` says which processes beside controller and shards the run has.
        """
        self.config, self.say, self._tick, self._workers = config, say, tick, workers
        limits = config.limits
        (config.run_dir / "logs").mkdir(parents=True, exist_ok=True)
        self.nursery = Nursery(begin, limits.restarts, limits.restart_window_s, self._revive)
        self.link: ControllerLink | None = None
        self._key = client_key(config)
        self._warned = ""  # what the controller last told people
        self._absent = Absent()
        self._ended: dict[str, int] = {}  # exit codes of those that ended after the run was told to stop
        self._unreplaceable: set[str] = set()  # workers whose failure is the run's, also on the way out

    def run(self) -> str:
        """Everything from the first process to the last. Main thread only (it handles Ctrl-C and SIGTERM)."""
        with Signals() as signals:
            try:
                self._place(signals)
                self._prepare(signals)
                self._start(signals)
                self._supervise(signals)
                reason = self._stop_reason()
            except RunFailed as failure:
                reason = str(failure)
            except OSError as error:  # a full disk, or the run's directory was taken away
                reason = f"the launcher cannot go on: {error}"
            finally:
                late = self._end(signals)
                self._vacate()
        return late if reason == COMPLETED and late is not None else reason

    # ------------------------------------------------------------ start

    def _place(self, signals: Signals) -> None:
        """Find a place for every worker, before anything costs time. Raises RunFailed. On this machine there is nothing to find."""

    def _vacate(self) -> None:
        """Give the places back; called last, also when none were found."""

    def _prepare(self, signals: Signals) -> None:
        """Directories of the models; environment and resolved configuration on disk."""
        directories: dict[str, str] = {}
        write_environment(self.config.run_dir)
        if any(model.prepare is not None for model in self.config.models.values()):
            self.say("preparing the weights of version 0 (cached after the first time)")
            answer = self._ask(signals, PREPARE, "asyncflow.launch.prepare:prepare_models", self.config.encode(), self.config.limits.prepare_s)
            directories = msgspec.json.decode(answer, type=dict[str, str])
            self.nursery.end(self.config.limits.drain_s)
        try:
            self.config = with_paths(self.config, directories)
        except FileNotFoundError as error:
            raise RunFailed(str(error)) from None
        (self.config.run_dir / "config.json").write_bytes(msgspec.json.format(self.config.encode()))

    def _start(self, signals: Signals) -> None:
        limits = self.config.limits
        url = self._ask(signals, CONTROLLER, "asyncflow.launch.controller:run", self.config.encode(), limits.start_s).decode()
        self.say(f"controller at {url}")
        (self.config.run_dir / CONTROLLER_URL).write_text(f"{url}\n")
        try:
            self.link = ControllerLink(url, self._key, limits.start_s, self.nursery, lambda: CONTROLLER in self.nursery.children)
        except LOST as error:
            raise RunFailed(f"the launcher cannot join the run: {error}") from error
        self._start_all(signals, shard_specs(self.config, url, self._key))
        self._start_all(signals, self._workers(self.config, url, self._key))

    def _ask(self, signals: Signals, name: str, entry: str, config: bytes, timeout_s: float) -> bytes:
        """Start a process with a pipe as its last argument and wait for the one answer that it sends."""
        receive, send = multiprocessing.Pipe(duplex=False)
        log, level = log_of(self.config, name), self.config.run.log_level
        child = self.nursery.start(ChildSpec(name=name, role=name, entry=entry, args=(config, send), log=log, log_level=level))
        send.close()
        with receive:
            return self._answer(signals, child, receive, timeout_s)

    def _answer(self, signals: Signals, child: Process, receive: Connection, timeout_s: float) -> bytes:
        ready = wait([receive, signals.fileno()], timeout_s)
        if signals.fileno() in ready:
            raise RunFailed(INTERRUPTED)
        if receive in ready:
            try:
                return receive.recv_bytes()
            except EOFError:
                wait([child.sentinel], timeout_s)
                raise RunFailed(f"{child.spec.name} ended before it was ready ({child.cause}): {_last_line(child)}") from None
        raise RunFailed(f"{child.spec.name} gave no answer within {timeout_s:g} s; see {child.spec.log}")

    def _start_all(self, signals: Signals, specs: list[ChildSpec]) -> None:
        """Start these and wait until all are registered."""
        assert self.link is not None
        for spec in specs:
            self.nursery.start(spec)
        self._unreplaceable |= {spec.name for spec in specs if is_worker(spec) and not spec.restartable}
        names = [spec.name for spec in specs]
        deadline = time.monotonic() + self.config.limits.start_s
        while not self.link.alive(names) and self._going():
            if time.monotonic() > deadline:
                missing = [name for name in names if not self.link.alive([name])]
                raise RunFailed(f"{', '.join(missing)} did not register within limits.start_s = {self.config.limits.start_s:g} s; see their logs")
            self._step(signals)
        self.say(f"registered: {', '.join(names)}" if self._going() else "the run stopped while it started")

    # ------------------------------------------------------------ supervise

    def _supervise(self, signals: Signals) -> None:
        while self._going():
            self._step(signals)

    def _going(self) -> bool:
        return self.link is not None and self.link.directive.state != "stop"

    def _step(self, signals: Signals) -> None:
        """One wait: a new directive, an ended process, a signal; at most a second."""
        assert self.link is not None
        self.link.poll(WATCH_S, *self.nursery.sentinels(), signals)
        if self.link.directive.warning != self._warned:
            self._warned = self.link.directive.warning
            self.say(self._warned or "it goes on")
        if signals.take():
            self.say("stopping (once more to end at once)")
            self.link.stop(INTERRUPTED)
            self.link.refresh()
            raise RunFailed(INTERRUPTED)
        self._end_absent(self.link)
        self._look_at_ends()
        if self.link.lost is not None and self._going():
            self._look_at_ends()  # the controller's own end would be the cause
            raise RunFailed(f"controller does not answer: {self.link.lost}")
        self._tick()

    def _end_absent(self, link: ControllerLink) -> None:
        """A worker that counts as dead and is still there does not run (SIGSTOP, a hung driver): end it, so that another can take its place."""
        restartable = [name for name, child in self.nursery.children.items() if child.spec.restartable]
        for name in self._absent.look(restartable, link.members(), time.monotonic()):
            self.nursery.children[name].send(signal.SIGKILL)

    def _look_at_ends(self) -> None:
        for child, code in self.nursery.ended():
            self._absent.forget(child.spec.name)
            self._on_end(child, code)

    def _on_end(self, child: Process, code: int) -> None:
        """What an ended process means for the run."""
        assert self.link is not None
        spec, cause = child.spec, child.cause
        if spec.name == CONTROLLER:
            self._show_log(child, code)
            often = self._too_often() if self._comes_back(child, code) else ""
            raise RunFailed(f"controller died: {cause}{often}{full_disk(self.config.run_dir)}")
        if (code < 0 or code == EXPELLED) and spec.restartable:
            self.link.dead(spec.name, cause, fatal=False)
            if self.nursery.restart(child):
                self._tell_restart(child, cause)
                return
            cause += self._too_often()
        self.link.refresh()
        if not self._going():
            self._ended[spec.name] = code
            return
        if code == 0 and spec.restartable:
            return  # it left in order
        if self.link.lost is not None:
            return  # then this end is a consequence: `_step` names the cause
        self._show_log(child, code)
        self.link.dead(spec.name, cause, fatal=True)
        self.link.refresh()
        if self._going():
            raise RunFailed(f"{spec.name} died: {cause}")

    def _revive(self, child: Process, code: int) -> bool:
        """For the nursery: the controller comes back whatever else goes on here, for all that is done about others is asked of it."""
        if self.link is None or not self._comes_back(child, code):
            return False
        config, _ = child.spec.args
        if not self.nursery.restart(child, msgspec.structs.replace(child.spec, args=(config, None))):
            return False
        self._tell_restart(child, child.cause)
        self.link.be_patient(COMEBACK_S)
        return True

    def _comes_back(self, child: Process, code: int) -> bool:
        return child.spec.name == CONTROLLER and code < 0 and self.config.queue.journal

    def _tell_restart(self, child: Process, cause: str) -> None:
        self.say(f"{child.spec.name} died ({cause}): restarted, {self.nursery.restarts[child.spec.name]} so far")

    def _too_often(self) -> str:
        limits = self.config.limits
        return f", more than limits.restarts = {limits.restarts} times in {limits.restart_window_s:g} s"

    def _show_log(self, child: Process, code: int) -> None:
        if code > 0:
            self.say(f"the end of {child.spec.log}:\n{child.tail()}")

    def _stop_reason(self) -> str:
        assert self.link is not None
        return self.link.directive.reason or "stopped without a reason"

    # ------------------------------------------------------------ end

    def _end(self, signals: Signals) -> str | None:
        """Nobody is left when this returns. Workers first, then the launcher's membership, then controller and shards.

        Returns what went wrong on the way: a process that failed instead of ending, for such a run is not completed.
        """
        codes = {name: code for name, code in self._ended.items() if name != CONTROLLER}
        begun_s, drain_s = time.monotonic(), self.config.limits.drain_s
        if self.link is not None:
            if self._going():
                self.link.stop("the launcher ends")
            codes |= self._drain(signals, self.link)
        codes |= self.nursery.end(0.0, is_worker)
        if self.link is not None:
            for name in codes:  # whoever could not leave, or whose word was lost with a controller: else this one waits for it
                self.link.dead(name, cause_of(codes[name]), fatal=False)
            self.link.close()
        codes |= self.nursery.end(drain_s if self.link is not None and self.link.lost is None else 0.0)
        if time.monotonic() - begun_s >= drain_s:  # an end in a hurry gives nobody time, so it blames nobody
            for name in sorted(self.nursery.unwilling):
                self.say(f"{name} did not end by itself within limits.drain_s = {drain_s:g} s: it was signalled")
        failed = [name for name, code in codes.items() if code > 0 or (code < 0 and name in self._unreplaceable)]
        return f"{', '.join(failed)} failed while the run ended; see {self.config.run_dir / 'logs'}" if failed else None

    def _drain(self, signals: Signals, link: ControllerLink) -> dict[str, int]:
        """Wait for the workers' end while the link still beats, at most `limits.drain_s`. Returns exit codes by name."""
        codes: dict[str, int] = {}
        deadline = time.monotonic() + self.config.limits.drain_s
        while any(is_worker(child.spec) for child in self.nursery.children.values()):
            left_s = deadline - time.monotonic()
            if left_s <= 0 or link.lost is not None or CONTROLLER not in self.nursery.children or signals.take():
                break
            link.poll(min(left_s, WATCH_S), *self.nursery.sentinels(), signals)
            codes |= {child.spec.name: code for child, code in self.nursery.ended()}
        return codes


def is_worker(spec: ChildSpec) -> bool:
    """Whether this process works for the run, rather than being a part of the queue."""
    return spec.role not in (CONTROLLER, "shard")


def _last_line(child: Process) -> str:
    lines = [line for line in child.tail().splitlines() if line.strip()]
    return f"{lines[-1].strip()} (see {Path(child.spec.log)})" if lines else f"see {child.spec.log}"
