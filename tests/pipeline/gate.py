"""Interruption without loss: 200 prompts at two replicas, an update every 50 ms, random aborts, one replica killed, one added.

Controller, shard, publisher and rollout workers are the real ones; the trainer is this process: at every update it trains one group, of those that
are ready or one of its own, so that versions come whatever the replicas do.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel

from asyncflow.config import POLICY
from asyncflow.contracts.weights import WeightsId, to_model_version
from asyncflow.engines.model import hf_tensors
from checkpoint_engine.publisher import Publisher
from checkpoint_engine.publisher_client import PublisherClient
from tests.pipeline.gate_engine import Note, read_notes
from tests.workers.worker_desk import NO_EVALUATION, TRAIN_ONLY, Desk, desk, until
from transfer_queue.columns import Jagged
from transfer_queue.messages import Event

ROOT = Path(__file__).parents[2]
PROMPTS, LATER = 200, 60  # LATER: of them, put when the added replica has its weights
ROWS, BUDGET, PROMPT_WIDTH = 2, 8, 16
EVERY_S = 0.05
KILL_AFTER = 20  # groups that were generated
OWN = 1 << 20  # gids of the trainer's own groups begin here
PATIENCE_S = 400.0  # a start of vLLM takes 20 s on an idle machine, and minutes on a busy one
INPUTS = ("prompt_ids", "response_ids", "rollout_logprobs", "token_versions", "finish")


@dataclass
class Row:
    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    versions: list[int]
    finish: int


@dataclass
class Outcome:
    trained: dict[int, list[Row]] = field(default_factory=dict)  # by gid
    models: dict[int, int] = field(default_factory=dict)  # version → which of the models
    notes: dict[str, list[Note]] = field(default_factory=dict)  # by replica
    events: list[Event] = field(default_factory=list)


class Gate:
    def __init__(self, found: Desk, folder: Path, models: list[PreTrainedModel], seed: int, step_s: float) -> None:
        self._found, self._folder, self._models, self._seed, self._step_s = found, folder, models, seed, step_s
        self._rng = random.Random(seed)
        self._replicas: dict[str, subprocess.Popen[bytes]] = {}
        self._version, self._own = 0, OWN
        self.outcome = Outcome()
        self._trainer = found.client("trainer-0", "trainer")

    # -------------------------------------------------------------- replicas

    def start(self, name: str) -> None:
        told = [self._found.queue.url, name, str(self._notes(name)), str(self._seed), str(self._step_s)]
        command = [sys.executable, "-m", "tests.pipeline.gate_replica", *told]
        with (self._folder / f"{name}.log").open("wb") as log:
            self._replicas[name] = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)

    def _notes(self, name: str) -> Path:
        return self._folder / f"{name}.notes"

    def await_weights(self, *names: str) -> None:
        until(lambda: all(self._has_loaded(name) for name in names), f"weights at {names}", PATIENCE_S)

    def _has_loaded(self, name: str) -> bool:
        code = self._replicas[name].poll()
        assert code is None, f"{name} ended with {code}:\n{(self._folder / f'{name}.log').read_text()[-4000:]}"
        return any(note.kind == "loaded" for note in read_notes(self._notes(name)))

    def caught(self, name: str) -> bool:
        """Whether it has groups under lease: it is stopped then, so that it goes on holding them."""
        replica = self._replicas[name]
        replica.send_signal(signal.SIGSTOP)
        time.sleep(EVERY_S)  # what it said before has arrived
        if self._found.core.topics[self._found.topic].held.get(f"{name}#0"):
            return True
        replica.send_signal(signal.SIGCONT)
        return False

    def kill(self, name: str, publisher: Publisher) -> None:
        """As a launcher sees it: the controller is told at once."""
        replica = self._replicas[name]
        replica.kill()
        replica.wait(30)
        owner = next(member for member in self._found.queue.status().members if member.startswith(f"{name}#"))
        self._trainer.member_dead(name, "killed").result(30.0)
        publisher.death_notice(owner)

    def end(self) -> None:
        for replica in self._replicas.values():
            if replica.poll() is None:
                replica.terminate()
                replica.send_signal(signal.SIGCONT)
        for replica in self._replicas.values():
            try:
                replica.wait(60)
            except subprocess.TimeoutExpired:
                replica.kill()
                replica.wait(30)

    # -------------------------------------------------------------- prompts and versions

    def put(self, first: int, count: int) -> None:
        rng = np.random.default_rng(self._seed)
        prompts = [rng.integers(3, self._models[0].config.vocab_size, rng.integers(1, PROMPT_WIDTH + 1)).tolist() for _ in range(PROMPTS)]
        chosen = range(first, first + count)
        columns = {"prompt_ids": Jagged.of([prompts[gid] for gid in chosen], "int32"), "item": [b"{}"] * count}
        self._found.client(f"source-{first}", "source").put_prompts(self._found.topic, list(chosen), columns, cursor=first + count, wait_s=30.0)

    def ended(self) -> int:
        """Prompts with an outcome."""
        return len(self.outcome.trained) + len(self.given_up())

    def generated(self) -> int:
        return sum(event.dst == "complete" and event.gid < OWN for event in self._found.events("group"))

    def given_up(self) -> set[int]:
        return {event.gid for event in self._found.events("group") if event.dst == "dropped" and event.gid < OWN}

    def update_until(self, done: Callable[[], bool], client: PublisherClient) -> None:
        """A version every EVERY_S, each with other weights than the one before."""
        deadline = time.monotonic() + PATIENCE_S
        next_s = time.monotonic()
        while not done():
            assert time.monotonic() < deadline, f"{self.ended()} of {PROMPTS} prompts have an outcome: {self._found.queue.status()}"
            for name, replica in self._replicas.items():
                assert replica.poll() in (None, -9), (self._folder / f"{name}.log").read_text()[-4000:]
            self._train()
            self.publish(client)
            next_s = max(next_s + EVERY_S, time.monotonic())
            time.sleep(max(0.0, next_s - time.monotonic()))

    def publish(self, client: PublisherClient) -> None:
        index = self._rng.choice([at for at in range(len(self._models)) if at != self.outcome.models.get(self._version - 1)])
        self.outcome.models[self._version] = index
        client.publish(WeightsId(POLICY, 0, self._version), lambda: hf_tensors(self._models[index]))

    def _train(self) -> None:
        """One group."""
        topic, trainer = self._found.topic, self._trainer
        taken = trainer.take(topic, "train", limit=1, step=self._version, wait_s=0.0).result(30.0)
        if taken.lease == -1:
            self._put_own()
            taken = trainer.take(topic, "train", limit=1, step=self._version, wait_s=30.0).result(60.0)
        self._keep(taken.rows)
        self._version = trainer.commit(topic, "train", POLICY, 0, self._version, [taken.lease]).result(30.0).version

    def _put_own(self) -> None:
        one = [[3]] * ROWS
        columns = {
            "prompt_ids": Jagged.of([[3]], "int32"),
            "item": [b"{}"],
            "response_ids": Jagged.of(one, "int32"),
            "rollout_logprobs": Jagged.of([[-1.0]] * ROWS, "float32"),
            "token_versions": Jagged.of([[self._version]] * ROWS, "int32"),
            "finish": np.zeros(ROWS, dtype="uint8"),
        }
        self._trainer.put(self._found.topic, columns, gids=[self._own], rows_per_group=ROWS, wait_s=30.0)
        self._own += 1

    def _keep(self, rows: object) -> None:
        refs = list(rows)  # type: ignore[call-overload]
        if refs[0].gid >= OWN:
            return
        columns = self._trainer.read(rows, INPUTS, self._trainer.topic(self._found.topic))  # type: ignore[arg-type]
        assert refs[0].gid not in self.outcome.trained, "trained twice"
        self.outcome.trained[refs[0].gid] = [
            Row(*(np.asarray(columns[name][at]).tolist() for name in INPUTS)) for at in range(len(refs))
        ]

    def finish(self) -> Outcome:
        self.outcome.notes = {name: list(read_notes(self._notes(name))) for name in self._replicas}
        self.outcome.events = self._found.events("group")
        return self.outcome


@contextmanager
def publishing(found: Desk) -> Iterator[tuple[Publisher, PublisherClient]]:
    teller = found.client("publisher-0", "publisher")
    over = threading.Event()
    publisher = Publisher(model=POLICY, on_published=lambda weights: teller.published(to_model_version(weights)).result(30.0))
    serving = threading.Thread(target=publisher.run, args=(over,))
    serving.start()
    client = PublisherClient(publisher.endpoint)
    try:
        teller.watch(endpoints={f"publisher:{POLICY}": publisher.endpoint}, wait_s=0.0).result(30.0)
        yield publisher, client
    finally:
        client.close()
        over.set()
        serving.join(30)


def run_gate(folder: Path, models: list[PreTrainedModel], pause_mode: str, *overrides: str, step_s: float = 0.0) -> Outcome:
    """Returns when every prompt has an outcome. Prints the seed of everything that is drawn. `step_s`: what a decode step takes at least: else
    everything could be generated before the second update."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    models[0].save_pretrained(folder / "model")
    settings = (
        *TRAIN_ONLY,
        NO_EVALUATION,
        f"stages.train.inputs=[{','.join(INPUTS)}]",
        f"models.policy.path={folder / 'model'}",
        *(f"rollout.{key}={value}" for key, value in {"slots": 8, "prompt_width": PROMPT_WIDTH, "response_width": BUDGET}.items()),
        f"rollout.samples_per_prompt={ROWS}",
        f"rollout.pause_mode={pause_mode}",
        "batch_size=1",
        "staleness=null",
        *(f"limits.{key}=600" for key in ("lease_s", "heartbeat_s", "stall_s")),
        *overrides,
    )
    with desk(folder, *settings) as found, publishing(found) as (publisher, client):
        gate = Gate(found, folder, models, seed, step_s)
        try:
            _storm(gate, publisher, client)
        finally:
            gate.end()
        return gate.finish()


def _storm(gate: Gate, publisher: Publisher, client: PublisherClient) -> None:
    gate.start("rollout-0")
    gate.start("rollout-1")
    gate.publish(client)
    gate.await_weights("rollout-0", "rollout-1")
    first = PROMPTS - LATER
    gate.put(0, first)
    gate.update_until(lambda: gate.generated() >= KILL_AFTER and gate.caught("rollout-1"), client)
    gate.kill("rollout-1", publisher)
    gate.start("rollout-2")
    gate.update_until(lambda: gate.ended() == first, client)
    gate.await_weights("rollout-2")
    gate.put(first, LATER)
    gate.update_until(lambda: gate.ended() == PROMPTS, client)
