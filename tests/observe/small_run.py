"""A whole small run, recorded: the real controller is driven request by request, without sockets, and the real recorder watches."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec

from asyncflow.config import RunConfig
from asyncflow.flow.core import core_config
from asyncflow.launch.controller import standing
from asyncflow.observe.recorder import Recorder
from asyncflow.observe.records import CostSums
from asyncflow.observe.summary import summarise, write_summary
from asyncflow.observe.trace import Trace, TraceSpan, encode_trace
from tests.config.recipes import MINIMAL, load_text
from transfer_queue.codec.declared import value_bytes
from transfer_queue.controller.core import Core
from transfer_queue.messages import (
    ClosePrompts,
    Commit,
    DropGroups,
    ModelVersion,
    PromptPut,
    Published,
    Pull,
    PutBatch,
    PutPrompts,
    PutRows,
    Register,
    Report,
    Request,
    RowPut,
    Slice,
    Take,
    Watch,
)

SHARED, ROLLED = ("prompt_ids", "item"), ("response_ids", "rollout_logprobs", "token_versions", "finish")
SHORT = (
    *(f"stages.{name}=null" for name in ("reward", "actor_forward", "ref_forward", "advantage")),
    *(f"resources.{name}=null" for name in ("scorer", "actor_forward", "ref_forward")),
    "stages.train.inputs=[response_ids]",
    "algorithm.old_logprobs=recompute",
    "evaluation.every=null",
    "rollout.samples_per_prompt=1",
)
TOKENS = 10.0  # that each commit says it trained


class SmallRun:
    """Members are called r (rollout), t (trainer), s (source); each is its first incarnation."""

    def __init__(self, config: RunConfig, recorder: Recorder) -> None:
        self.now = 0.0
        settings = core_config(config)
        self.core = Core(settings, recorder, lambda: self.now)
        recorder.standing = lambda topic: standing(self.core, topic)
        self.core.send_traces_to(recorder.on_trace)
        self.sizes = {column.name: value_bytes(column) for topic in settings.topics for column in topic.columns}
        self.told = 0  # µs that r's timeline covers
        self.requests = 0
        self.blocks = 0

    def ask(self, request: Request) -> msgspec.Struct:
        """One request, answered at once. Time goes on by 10 ms."""
        self.now += 0.01
        self.requests += 1
        self.core.handle(b"c", msgspec.structs.replace(request, id=self.requests))
        replies = [reply for _, reply in self.core.outbox if reply.id == self.requests]
        self.core.outbox.clear()
        assert len(replies) == 1, request
        assert type(replies[0]).__name__ != "ErrorReply", replies[0]
        return replies[0]

    def slices(self, names: tuple[str, ...]) -> dict[str, Slice]:
        self.blocks += 1
        return {name: Slice(0, self.blocks, 0, self.sizes[name]) for name in names}


def record_run(folder: Path, steps: int = 4, batch: int = 3, seed: int = 0, *more: str, info: dict[str, float] | None = None) -> Path:
    """Run directory of a completed run in which some groups were dropped and replaced. `info`: further numbers of every commit."""
    config = load_text(folder, MINIMAL, *SHORT, f"run.steps={steps}", f"batch_size={batch}", "staleness=1", *more)
    run_dir = folder / "run"
    run_dir.mkdir()
    config = msgspec.structs.replace(config, run=msgspec.structs.replace(config.run, dir=str(run_dir)))
    (run_dir / "config.json").write_bytes(config.encode())
    with Recorder(run_dir, devices=2) as recorder:
        drive(SmallRun(config, recorder), config, random.Random(seed), info or {})
    write_summary(run_dir, summarise(run_dir, "completed", 9.0, {"rollout-0": 1}))
    return run_dir


def drive(run: SmallRun, config: RunConfig, dice: random.Random, more: dict[str, float]) -> None:
    for name, role in (("r", "rollout"), ("t", "trainer"), ("s", "source"), ("p", "publisher")):
        run.ask(Register(name=name, role=role, pid=1, host="here"))
    publish(run, 0)
    run.ask(ClosePrompts(topic="policy", count=config.total_groups))
    gid = 0
    for step in range(config.total_steps):
        leases: list[int] = []
        held = 0
        while held < config.batch_size:
            gid = put(run, gid)
            roll(run, step, dice)
            take = run.ask(Take(topic="policy", consumer="train", member="t", incarnation=0, limit=1, step=step, wait_s=0))
            if take.lease >= 0:
                leases.append(take.lease)
                held += 1
        run.ask(Watch(member="r", incarnation=0, busy={"busy": run.now / 4, "wait": run.now * 3 / 4}, trace=trace(run, step + 1), wait_s=0))
        info = {"tokens": TOKENS, "rows": 3.0, "mixed_version_rows": 1.0, "reward_mean": 0.5, "staleness_max": float(min(step, 1))} | more
        run.ask(
            Commit(topic="policy", consumer="train", member="t", incarnation=0, model="policy", epoch=0, step=step, leases=leases, info=info)
        )
        publish(run, step + 1)


def trace(run: SmallRun, steps: int) -> bytes:
    """r was busy all the time, and made one decode step of 8 rows a version."""
    start, run.told = run.told, round(run.now * 1e6)
    spans = [TraceSpan("busy", "compute", start, run.told)]
    sums = CostSums(steps, 8.0 * steps, 64.0 * steps, 0.01 * steps, 0.08 * steps)
    return encode_trace(Trace(start, run.told, {"main": spans}, [5], {"rollout.decode": sums}))


def publish(run: SmallRun, version: int) -> None:
    run.ask(Published(weights=ModelVersion("policy", 0, version, f"digest{version}"), member="p", incarnation=0))
    run.ask(Report(member="r", incarnation=0, kind="evaluation", data={"accuracy": version / 10, "version": version}))


def put(run: SmallRun, gid: int) -> int:
    prompt = PromptPut(gid=gid, columns=run.slices(SHARED))
    run.ask(PutPrompts(topic="policy", member="s", incarnation=0, prompts=[prompt], cursor=gid + 1, wait_s=0))
    return gid + 1


def roll(run: SmallRun, version: int, dice: random.Random) -> None:
    """Admit one group, then give it up (1 in 4) or finish it."""
    pulled = run.ask(Pull(topic="policy", member="r", incarnation=0, loaded=version, limit=1, wait_s=0))
    for group in pulled.groups:
        if dice.random() < 0.25:
            run.ask(DropGroups(topic="policy", member="r", incarnation=0, gids=[group.gid], reason="too_long"))
            continue
        row = RowPut(gid=group.gid, fence=group.fence, row=0, columns=run.slices(ROLLED), tokens=5, oldest_version=version, newest_version=version)
        run.ask(PutRows(topic="policy", member="r", incarnation=0, rows=PutBatch.of([row]), close={group.gid: 1}))
