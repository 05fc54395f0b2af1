"""The course of a soak: everybody starts, is killed at random for a while, calms down, and ends; then the books are looked at."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from random import Random

import msgspec

from tests.soak import flat, oracle
from tests.soak.consumers import LIMIT
from tests.soak.crew import Broken, Crew
from tests.soak.evidence import Evidence, Told, gather
from tests.soak.flat import Growth
from tests.soak.settings import Settings
from tests.soak.topics import BATCH, write_config
from transfer_queue.client import QueueClient
from transfer_queue.messages import ModelVersion, TopicStatus
from transfer_queue.operation.probe import FAILURES
from transfer_queue.operation.report import QueueReport

CALM_S = 120.0  # for everything that is under way to be done
END_S = 60.0  # for everybody to leave
REPLY_S = 30.0
MORE = 10 * BATCH + 1  # groups after the last kill: more than are trained between question and close, and the last batch is short


class Counts(msgspec.Struct):
    """Of one topic, in groups where nothing else is said."""

    put: int  # acknowledged, or handed out to rollouts
    trained: int
    dropped: dict[str, int]  # by reason
    steps: int
    rows_read: int  # by trainers, each byte compared
    rows_graded: int  # by graders, the same


class Report(msgspec.Struct):
    ok: bool
    problems: list[str]
    seed: int
    seconds: float
    kills: dict[str, int]  # by process
    topics: dict[str, Counts]
    made_again: dict[str, int]  # calls that failed because a server was gone, by process
    nonsense: dict[str, int]  # messages by server
    answers: dict[str, int]  # to them
    slowest_answer_s: float | None
    growth: list[Growth]
    samples: int
    journal_bytes: int


class Soak:
    def __init__(self, settings: Settings) -> None:
        self._settings, self._folder = settings, Path(settings.folder)
        self._crew = Crew(settings)
        self._begin = self._calm_at = 0.0
        self._last: dict[str, TopicStatus] = {}

    def run(self) -> Report:
        for name in ("records", "logs"):
            (self._folder / name).mkdir(parents=True)
        write_config(self._folder / "queue.json")
        crew = self._crew
        try:
            crew.start()
            self._storm()
            self._calm()
            self._leave()
        except (Broken, *FAILURES) as error:
            crew.problems.append(str(error))
            if crew.url and (report := crew.ask(waits=True)) is not None:
                (self._folder / "waits.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)))
        finally:
            crew.close()
        (self._folder / "samples.json").write_bytes(msgspec.json.encode(crew.samples))
        return self._report()

    # ------------------------------------------------------------ the course

    def _storm(self) -> None:
        rng = Random(self._settings.seed)
        self._begin = now = time.monotonic()
        self._calm_at = self._begin + self._settings.seconds
        due = now + self._settings.kill_s * rng.uniform(0.5, 1.5)
        while (now := time.monotonic()) < self._calm_at:
            if now >= due:
                due = now + self._settings.kill_s * rng.uniform(0.5, 1.5)
                self._crew.kill(rng)
            self._crew.turn(max(0.0, min(due, self._calm_at) - now))

    def _calm(self) -> None:
        """Nobody is killed any more: each topic gets its count and comes to its end, short last batch included."""
        self._crew.calm = True
        for topic in self._crew.told().topics:
            count = topic.ledger.get(oracle.TRAINED, 0) + topic.open + MORE
            self._crew.client.close_prompts(topic.name, count).result(REPLY_S)
        self._crew.until(self._over, CALM_S, "the topics do not come to their end")
        workers = [child for child in self._crew.children.values() if child.seat.kind not in ("controller", "shard")]
        self._crew.until(lambda: all(child.ended for child in workers), END_S, "workers do not leave")
        self._crew.until(self._empty, END_S, "shards keep bytes of groups that have ended")

    def _over(self) -> bool:
        status = self._crew.status()
        return status is not None and all(topic.over for topic in status.topics)

    def _empty(self) -> bool:
        """Every byte is freed, and nobody holds any."""
        report: QueueReport | None = self._crew.ask()
        if report is None:
            return False
        self._last = {topic.name: topic for topic in report.status.topics}
        stored = [shard.stored for shard in report.shards]
        return all(shard is not None and shard.used_bytes == shard.held_bytes == 0 for shard in stored)

    def _leave(self) -> None:
        """With the last version published the run is complete, and everybody who is left ends by himself."""
        self._crew.ending = True
        with QueueClient.connect(self._crew.url, name="publisher", role="publisher") as client:
            for topic in self._last.values():
                assert topic.spec is not None, "the controller tells it"
                client.published(ModelVersion(topic.spec.model, 0, topic.version)).result(REPLY_S)
            client.leave().result(REPLY_S)
        self._crew.until(lambda: all(child.ended for child in self._crew.children.values()), END_S, "the servers do not end")

    # ------------------------------------------------------------ the books

    def _report(self) -> Report:
        crew, settings = self._crew, self._settings
        found, told = gather(self._folder / "records")
        self._fill_in(found, told)
        growth = flat.growths(crew.samples, self._begin, self._calm_at)
        problems = [*crew.problems, *told.wrong, *self._tracebacks()]
        problems += [problem for topic in sorted(self._last) for problem in oracle.judge(topic, found[topic])]
        problems += [problem for part in growth for problem in part.problems()]
        if not growth:
            problems.append("the run was too short to tell whether memory and descriptors are flat")
        fuzzed = told.fuzzed
        return Report(
            ok=not problems,
            problems=problems,
            seed=settings.seed,
            seconds=settings.seconds,
            kills=dict(Counter(name for _, name in crew.kills)),
            topics={name: _counts(found[name]) for name in found},
            made_again=dict(told.hiccups),
            nonsense={} if fuzzed is None else fuzzed.sent,
            answers={} if fuzzed is None else fuzzed.answers,
            slowest_answer_s=None if fuzzed is None else fuzzed.slowest_s,
            growth=growth,
            samples=len(crew.samples),
            journal_bytes=sum(file.stat().st_size for file in (self._folder / "journal").iterdir()),
        )

    def _fill_in(self, found: dict[str, Evidence], told: Told) -> None:
        """What the supervisor and the controller know."""
        killed = Counter(name for _, name in self._crew.kills)
        for name, mine in found.items():
            mine.losses = [t for t, victim in self._crew.kills if victim.startswith("shard-")]
            graders = [seat.name for seat in (child.seat for child in self._crew.children.values()) if (seat.kind, seat.topic) == ("grader", name)]
            mine.unnoted = LIMIT * sum(killed[grader] + told.hiccups[grader] for grader in graders)
            if name in self._last:
                last = self._last[name]
                mine.ledger, mine.version, mine.target = last.ledger, last.version, last.target or 0

    def _tracebacks(self) -> list[str]:
        """A server that goes on after a fault of its own says so in its log."""
        logs = [log for kind in ("controller", "shard-") for log in (self._folder / "logs").glob(f"{kind}*")]
        return [f"{log.name} has a traceback: …{text[-1000:]}" for log in sorted(logs) if "Traceback" in (text := log.read_text(errors="replace"))]


def _counts(found: Evidence) -> Counts:
    dropped = {state.removeprefix(oracle.DROPPED): count for state, count in found.ledger.items() if state.startswith(oracle.DROPPED)}
    return Counts(
        put=len(found.acknowledged) + len(found.pulled),
        trained=found.ledger.get(oracle.TRAINED, 0),
        dropped=dropped,
        steps=found.version,
        rows_read=sum(map(len, found.batches.values())),
        rows_graded=sum(map(len, found.graded.values())),
    )
