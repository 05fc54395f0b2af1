"""One replica of the gate, a process of its own: the real rollout worker, put together as `asyncflow.worker` does, over an engine that is looked at.

    python -m tests.pipeline.gate_replica URL NAME NOTES SEED STEP_S
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from asyncflow.config import POLICY
from asyncflow.contracts.worker import WorkerArgs
from asyncflow.engines.rollout.factory import make_rollout_engine
from asyncflow.worker import set_threads
from asyncflow.workers.context import REPLY_S, WorkerContext
from asyncflow.workers.roles import model_dir
from asyncflow.workers.rollout import RolloutWorker
from tests.pipeline.gate_engine import NotedEngine

REASON = "gate"  # of the groups that are given up at random


def main(url: str, name: str, notes: str, seed: str, step_s: str) -> None:
    set_threads(1)
    context = WorkerContext.connect(WorkerArgs(role="rollout", name=name, controller=url), None)
    signal.signal(signal.SIGTERM, lambda *_: context.control.request_stop())

    def give_up(gid: int) -> None:
        context.client.drop_groups(context.topic.name, [gid], REASON).result(REPLY_S)

    engine = make_rollout_engine(context.config, model_dir(context, POLICY), name)
    budget = context.config.rollout.response_width
    RolloutWorker(context, NotedEngine(engine, Path(notes), seed, budget, give_up, float(step_s)), None).run()
    context.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
