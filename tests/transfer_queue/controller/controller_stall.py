"""A run of all roles under a fake clock that goes on until a test stops one of them: heartbeats of everybody else, and of who hangs, go on."""

from __future__ import annotations

from typing import Any

import msgspec
from controller_bench import spec
from controller_desk import Desk, Who, gids

from transfer_queue import messages as m
from transfer_queue.controller.duties import Duty

ROLES = {
    "source": ["source"],
    "rollout": ["rollout"],
    "scorer": ["reward", "advantage"],
    "actor": ["forward"],
    "trainer": ["trainer"],
    "publisher": ["publish"],
    "shard": [],
}
STALL_S = 60.0


class Line(Desk):
    """Batches of 2 groups of 2 rows at staleness 0: a version is made of what the version before it generated."""

    def __init__(self, rollouts: int = 1, duty: bool = False, staleness: int = 0, **config: Any) -> None:
        duties = [Duty(name="evaluate", role="rollout", model="policy", every=1)] if duty else []
        settings = {"stall_s": STALL_S, "lease_s": 1000.0, "heartbeat_s": 1000.0, "roles": ROLES, "duties": duties, **config}
        super().__init__(spec(batch=2, staleness=staleness, rows=2), **settings)
        self.reports: list[m.StallReport] = []
        self.core.send_stall_to(self.reports.append, lambda name: f"code of {name}")
        self.shard = self.join("shard-0", "shard", shard="tcp://127.0.0.1:1")
        self.source = self.join("source-0", "source")
        self.rollouts = [self.join(f"rollout-{index}") for index in range(rollouts)]
        self.rollout = self.rollouts[0]
        self.scorer, self.actor = self.join("scorer-0", "scorer"), self.join("actor-0", "actor")
        self.trainer, self.publisher = self.join("trainer-0", "trainer"), self.join("publisher-0", "publisher")
        self.stopped: set[str] = set()  # names that send no heartbeats
        self.activity: dict[str, str] = {}  # by name; "wait" for the others
        self._spent: dict[str, dict[str, float]] = {}
        self.step = 0

    @property
    def everybody(self) -> list[Who]:
        return [self.shard, self.source, *self.rollouts, self.scorer, self.actor, self.trainer, self.publisher]

    def age(self, seconds: float) -> None:
        """Second by second, with everybody's heartbeat."""
        for _ in range(int(seconds)):
            self.wait(1.0)
            for who in self.everybody:
                if who.name not in self.stopped and self.core._run.control.members.find(who.name) is not None:
                    self.beat(who)

    def beat(self, who: Who, **more: Any) -> None:
        spent = self._spent.setdefault(who.name, {})
        activity = self.activity.get(who.name, "wait")
        spent[activity] = spent.get(activity, 0.0) + 1.0
        self.send(who.connection, m.Watch(seen=-1, busy=dict(spent), wait_s=0.0, **who.fields, **more))

    def load(self, version: int, *who: Who) -> None:
        for each in who or (*self.rollouts, self.actor):
            self.beat(each, loaded={"policy": version})

    def park(self, who: Who, request: type[m.Request], **more: Any) -> int:
        return self.send(who.connection, request(topic="policy", wait_s=600.0, **who.fields, **more))

    def park_all(self) -> None:
        """Everybody asks for work, as idle workers do."""
        self.park(self.source, m.Demand)
        for rollout in self.rollouts:
            loaded = self.core._run.control.members.find(rollout.name).loaded.get("policy", 0)  # type: ignore[union-attr]
            self.park(rollout, m.Pull, loaded=loaded, limit=2)
        self.park_stages()
        self.park(self.trainer, m.Take, consumer="trainer", limit=2, at_least=2, step=self.step)

    def park_stages(self) -> None:
        for name in ("reward", "advantage"):
            self.park(self.scorer, m.Take, consumer=name, limit=8)
        self.park(self.actor, m.Take, consumer="forward", limit=8, loaded=self.step)

    def generated(self, rollout: Who | None = None) -> list[m.GroupLease]:
        """Two groups pulled and put."""
        leases = self.pull(rollout or self.rollout, 2, loaded=self.step)
        for lease in leases:
            self.put(rollout or self.rollout, lease, self.step)
        return leases

    def served(self, *consumers: str) -> None:
        for consumer, column in (("reward", "reward"), ("forward", "old_logprobs"), ("advantage", "advantage")):
            if consumer in consumers:
                who = self.actor if consumer == "forward" else self.scorer
                weights = self.step if consumer == "forward" else None
                taken = self.take(who, consumer, loaded=weights)
                assert self.write(who, taken, consumer, column, weights) == []

    def trained(self) -> None:
        """A whole step, the commit included."""
        self.generated()
        self.served("reward", "forward", "advantage")
        taken = self.take(self.trainer, step=self.step)
        assert len(gids(taken)) == 2
        self.ask(self.trainer.connection, self.commit(self.trainer, self.step, [taken.lease]), m.OkCommitted)
        self.step += 1

    def begun(self, prompts: int = 8) -> Line:
        """Version 0 is published and loaded, one step is trained, published and loaded: the run is under way."""
        self.prompts(prompts, self.source)
        self.publish(self.publisher, 0)
        self.load(0)
        self.trained()
        self.publish(self.publisher, 1)
        self.load(1)
        return self

    def stall(self) -> m.StallReport:
        """Nothing goes on any more; the report of it, and it is what the run ends with."""
        self.age(STALL_S + 2)
        assert self.core.stopped, "somebody still makes progress"
        (report,) = self.reports
        assert self.core.status().reason == f"stall: no progress for {report.idle_s:.1f} s: {report.verdict}"
        assert msgspec.json.decode(msgspec.json.encode(report), type=m.StallReport) == report
        return report
