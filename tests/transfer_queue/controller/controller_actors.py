"""The worker processes of a simulated run: they park, are woken, learn by directives, lag, hang, die and come back, as real ones do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from controller_messages import put_rows, write_back

from transfer_queue import messages as m

if TYPE_CHECKING:
    from controller_world import World

ROWS = 2  # of every group
AHEAD = 2  # leases that a stage has at a time
EPOCH_STEPS = 4  # a trainer recovers after so many, where it was


def epoch_of(version: int) -> int:
    """In which it is made."""
    return max(0, version - 1) // EPOCH_STEPS


class Actor:
    """One worker process: its incarnation, its parked request, its view of the directive."""

    role = "stage"

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.begin()

    def begin(self) -> None:
        self.alive = True
        self.connection = f"{self.name}@{self.world.serial()}".encode()
        self.waiting: int | None = None  # id of the parked request
        self.directive: m.Directive | None = None
        self.loaded = -1
        self.behind_since: float | None = None  # when it first heard of newer weights than it has
        reply = self.ask(m.Register(name=self.name, role=self.role, pid=1, host="h"))
        assert isinstance(reply, m.OkRegistered)
        self.incarnation = reply.incarnation

    @property
    def who(self) -> dict[str, Any]:
        return {"member": self.name, "incarnation": self.incarnation}

    def ask(self, request: m.Request) -> m.Reply | None:
        return self.world.call(self, request)

    def park(self, request: m.Request) -> None:
        """Ask for something that may park; `answered` gets the reply, now or later."""
        self.waiting = self.world.serial()
        self.world.call(self, request, self.waiting)

    def watch(self, **extra: Any) -> None:
        seen = -1 if self.directive is None else self.directive.revision
        loaded = {"policy": self.loaded} if self.loaded >= 0 else {}
        epochs = {model: epoch_of(version) for model, version in loaded.items()}
        reply = self.ask(m.Watch(seen=seen, loaded=loaded, epochs=epochs, wait_s=0.0, **self.who, **extra))
        if isinstance(reply, m.ErrorReply):
            self.die()
            return
        assert isinstance(reply, m.OkDirective)
        self.directive = reply.directive

    def load(self, chance: float) -> None:
        """Whoever is behind for half the time after which a run counts as stalled loads surely: a longer lag would rightly end it."""
        weights = self.directive.weights.get("policy") if self.directive else None
        if weights is None or weights.version <= self.loaded:
            return
        now = self.world.clock.now
        self.behind_since = now if self.behind_since is None else self.behind_since
        if self.world.rng.random() < chance or now - self.behind_since > self.world.config.stall_s / 2:
            self.loaded, self.behind_since = weights.version, None

    def die(self) -> None:
        self.alive = False

    def act(self) -> None:
        rng = self.world.rng
        if not self.alive:
            if rng.random() < 0.3:
                self.begin()
            return
        if rng.random() < self.world.settings.deaths:
            self.world.deaths += 1
            self.die()
            if rng.random() < 0.7:  # else nobody tells, and the heartbeat or the next incarnation does
                self.world.call(None, m.MemberDead(member=self.name, incarnation=-1, cause="killed"))
            return
        self.watch()
        if self.alive and self.directive is not None and self.directive.state != "stop":
            self.work()

    def work(self) -> None: ...

    def answered(self, reply: m.Reply) -> None: ...


class Source(Actor):
    role = "source"

    def work(self) -> None:
        late = self.world.settings.total > 20  # a short run could be over before a late close
        if not self.world.closed and (not late or self.world.rng.random() < 0.2):
            self.world.closed = True
            self.ask(m.ClosePrompts(topic="policy", count=self.world.settings.total))
        if self.waiting is None:
            self.park(m.Demand(topic="policy", wait_s=500.0, **self.who))

    def answered(self, reply: m.Reply) -> None:
        if isinstance(reply, m.OkDemand) and reply.wanted:
            gids = range(reply.cursor, reply.cursor + self.world.rng.randint(1, reply.wanted))
            prompts = [m.PromptPut(gid=gid, columns={"prompt": self.world.slice()}) for gid in gids]
            if gids and self.world.rng.random() < 0.2:
                prompts.append(m.PromptPut(gid=gids[0], columns={"prompt": self.world.slice()}))  # a repeat, which is ignored
            self.park(m.PutPrompts(topic="policy", prompts=prompts, cursor=gids[-1] + 1, wait_s=500.0, **self.who))


@dataclass
class Attempt:
    lease: m.GroupLease
    left: dict[int, int]  # row -> tokens to go
    tokens: dict[int, list[int]] = field(default_factory=dict)  # row -> versions of its tokens
    begun: int = 0  # of them, those that another attempt handed back

    def count(self) -> int:
        return sum(map(len, self.tokens.values())) - self.begun

    def oldest(self) -> int | None:
        return min((version for versions in self.tokens.values() for version in versions), default=None)


class Rollout(Actor):
    role = "rollout"

    def begin(self) -> None:
        self.attempts: dict[int, Attempt] = {}
        self.hung_until = 0.0
        super().begin()

    def act(self) -> None:
        if not self.alive or self.world.clock.now >= self.hung_until:
            super().act()
        else:
            self.watch()  # heartbeats go on while the engine hangs

    def work(self) -> None:
        world = self.world
        assert self.directive is not None
        if world.rng.random() < world.settings.hang:
            self.hung_until = world.clock.now + 8.0
        for gid, fence in self.directive.cancelled:
            if gid in self.attempts and self.attempts[gid].lease.fence == fence:
                del self.attempts[gid]
        if self.directive.duty is not None:
            self._evaluate()
        else:
            self.load(world.settings.load_chance)
        if self.waiting is None and len(self.attempts) < 3:
            asked = {"limit": world.rng.randint(1, 3 - len(self.attempts)), "epoch": epoch_of(self.loaded) if self.loaded >= 0 else None}
            self.park(m.Pull(topic="policy", loaded=self.loaded, wait_s=500.0, **asked, **self.who))
        for attempt in list(self.attempts.values()):
            if not attempt.count() and world.rng.random() < 0.2:
                self._tell(attempt)
        if self.attempts and world.settings.hand_backs and world.rng.random() < world.settings.hand_backs:
            self._hand_back()
        for gid in list(self.attempts):
            if gid in self.attempts and world.rng.random() < 0.8:
                self._generate(self.attempts[gid])

    def _hand_back(self) -> None:
        """All of them, with what they have."""
        groups = []
        for gid, attempt in self.attempts.items():
            begun = {row: versions for row, versions in attempt.tokens.items() if row in attempt.left}
            versions = [version for versions in begun.values() for version in versions]
            piece = self.world.slice() if versions else None
            if piece is not None:
                self.world.left[piece.block] = begun
            tokens = (attempt.count(), min(versions, default=0), max(versions, default=0))
            epochs: dict[int, tuple[int, int]] = {}
            for version in sorted(versions):
                epochs[epoch_of(version)] = (epochs.get(epoch_of(version), (version, version))[0], version)
            groups.append(m.HandedBack(gid, attempt.lease.fence, *tokens, piece, epochs))
        reply = self.ask(m.HandBack(topic="policy", groups=groups, **self.who))
        self.world.handed_back += isinstance(reply, m.OkHandedBack) and len(groups) - len(reply.closed)
        self.attempts.clear()
        if isinstance(reply, m.ErrorReply) and reply.code == "stale_incarnation":
            self.die()

    def _evaluate(self) -> None:
        if not self.attempts and self.world.rng.random() < 0.3:
            self.world.evaluated.append(self.loaded)
            self.watch(duty_done="evaluate")

    def answered(self, reply: m.Reply) -> None:
        assert isinstance(reply, m.OkPulled | m.ErrorReply), reply
        for lease in reply.groups if isinstance(reply, m.OkPulled) else ():
            assert self.loaded >= lease.min_version, "handed out to weights that are too old"
            assert lease.epoch == epoch_of(lease.min_version)
            long = self.world.rng.random() < self.world.settings.slow
            left = {row: self.world.rng.randint(20, 40) if long else self.world.rng.randint(1, 4) for row in lease.rows}
            begun = {} if lease.left is None else self.world.left[lease.left.block]
            tokens = {row: list(versions) for row, versions in begun.items() if row in left}
            assert all(versions[-1] <= self.loaded for versions in tokens.values()), "goes on with weights that are older than its last token"
            self.attempts[lease.gid] = Attempt(lease, left, tokens, sum(map(len, tokens.values())))

    def _generate(self, attempt: Attempt) -> None:
        row = self.world.rng.choice(sorted(attempt.left))
        tokens = min(attempt.left[row], self.world.rng.randint(1, 3))
        attempt.tokens.setdefault(row, []).extend([self.loaded] * tokens)
        attempt.left[row] -= tokens
        if attempt.left[row]:
            if self.world.rng.random() < 0.5:
                self._tell(attempt)
            return
        del attempt.left[row]
        self._put(attempt, row)

    def _tell(self, attempt: Attempt) -> None:
        oldest = attempt.oldest() if attempt.count() else self.loaded
        item = m.ProgressItem(attempt.lease.gid, attempt.lease.fence, attempt.count(), oldest)
        self._closed(self.ask(m.Progress(topic="policy", items=[item], **self.who)))

    def _put(self, attempt: Attempt, row: int) -> None:
        gid, versions = attempt.lease.gid, attempt.tokens[row]
        piece = self.world.slice()
        put = m.RowPut(
            gid=gid,
            fence=attempt.lease.fence,
            row=row,
            columns={"tokens": piece},
            tokens=len(versions),
            oldest_version=min(versions),
            newest_version=max(versions),
        )
        close = {} if attempt.left else {gid: ROWS}
        reply = self.ask(put_rows([put], topic="policy", close=close, **self.who))
        if isinstance(reply, m.OkPut) and not reply.closed:
            self.world.tokens[piece.block] = versions
        self._closed(reply)
        if close:
            self.attempts.pop(gid, None)

    def _closed(self, reply: m.Reply | None) -> None:
        if isinstance(reply, m.ErrorReply):
            assert reply.code == "stale_incarnation", reply
            self.die()
            return
        assert isinstance(reply, m.OkProgress | m.OkPut), reply
        for gid in reply.closed:
            self.attempts.pop(gid, None)


class Stage(Actor):
    """reward, forward or advantage: take, also ahead, then write back some time later, now and then after the lease ran out."""

    def begin(self) -> None:
        self.leases: list[m.OkTaken] = []
        self.slow_until = 0.0
        super().begin()

    @property
    def role(self) -> str:  # type: ignore[override]
        return self.name.partition("-")[0]

    def work(self) -> None:
        self.load(0.5)
        rng, now = self.world.rng, self.world.clock.now
        if rng.random() < self.world.settings.slow_stages:
            self.slow_until = now + rng.uniform(0.0, 15.0)
        if now < self.slow_until:
            return
        if self.leases:
            self._write(self.leases.pop(0))
        if self.waiting is None and len(self.leases) < AHEAD:
            loaded = self.loaded if self.role == "forward" else None
            self.park(m.Take(topic="policy", consumer=self.role, limit=self.world.rng.randint(1, 5), loaded=loaded, wait_s=500.0, **self.who))

    def answered(self, reply: m.Reply) -> None:
        if isinstance(reply, m.OkTaken) and reply.lease != -1:
            self.leases.append(reply)

    def _write(self, lease: m.OkTaken) -> None:
        output = {"reward": "reward", "forward": "old_logprobs", "advantage": "advantage"}[self.role]
        if self.world.rng.random() < 0.05:
            self.ask(m.Release(topic="policy", consumer=self.role, lease=lease.lease, **self.who))
            return
        if self.role == "advantage" and self.world.rng.random() < self.world.settings.drops:
            self.ask(m.DropGroups(topic="policy", gids=[lease.rows[0].gid], reason="tired", **self.who))
        keys = [(row.gid, row.row) for row in lease.rows]
        weights = m.ModelVersion("policy", 0, self.loaded) if self.role == "forward" else None
        reply = self.ask(
            write_back(
                topic="policy",
                consumer=self.role,
                lease=lease.lease,
                keys=keys,
                weights=weights,
                columns={output: [self.world.slice() for _ in keys]},
                **self.who,
            )
        )
        assert isinstance(reply, m.OkWritten), reply


class Trainer(Actor):
    role = "trainer"

    def begin(self) -> None:
        self.clock = self.world.published_step
        self.leases: list[m.OkTaken] = []
        super().begin()

    def work(self) -> None:
        world = self.world
        if world.publish_is_due():
            return
        groups = {row.gid for lease in self.leases for row in lease.rows}
        if self.leases and len(groups) == self.leases[-1].batch:
            self._commit()
        elif self.waiting is None:
            limit = world.rng.randint(1, world.settings.batch)
            self.park(
                m.Take(
                    topic="policy", consumer="trainer", limit=limit, at_least=world.rng.randint(1, limit), step=self.clock, wait_s=500.0, **self.who
                )
            )

    def answered(self, reply: m.Reply) -> None:
        if isinstance(reply, m.OkTaken):
            if reply.lease != -1:
                self.leases.append(reply)
            elif reply.version > self.clock:
                self.clock, self.leases = reply.version, []

    def _commit(self) -> None:
        leases, epoch = [lease.lease for lease in self.leases], epoch_of(self.clock + 1)
        commit = m.Commit(topic="policy", consumer="trainer", model="policy", epoch=epoch, step=self.clock, leases=leases, **self.who)
        reply = self.ask(commit)
        if isinstance(reply, m.ErrorReply):
            assert reply.code == "stale_incarnation", reply
            self.die()
            return
        assert isinstance(reply, m.OkCommitted)
        assert reply.version == self.clock + 1
        self.world.trained(self.clock, self.leases)
        again = self.ask(commit)
        assert isinstance(again, m.OkCommitted)
        assert again.version == reply.version
        self.clock, self.leases = reply.version, []


class Publisher(Actor):
    role = "publisher"

    def begin(self) -> None:
        super().begin()
        self.publish()

    def work(self) -> None:
        self.publish()

    def publish(self) -> None:
        version = self.world.core.topics["policy"].version
        self.ask(m.Published(weights=m.ModelVersion("policy", epoch_of(version), version), **self.who))
        self.world.published_step = version
