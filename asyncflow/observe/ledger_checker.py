"""`python -m asyncflow.observe.ledger_checker RUN_DIR`: counts the ledger again from the event log and compares it with what the run says.

It shares no code with the controller. Exit code 0: all agrees; 1: the first contradiction is printed; 2: there is nothing to check.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from asyncflow.config import RunConfig
from asyncflow.observe.records import EVENTS, SUMMARY, StepRecord, Summary
from asyncflow.observe.replay import Inconsistent, Replay, read_events
from asyncflow.observe.summary import read_metrics
from transfer_queue.messages import Event


class Checker:
    """Walks the events once; `steps` are the lines of metrics.jsonl, compared when their line of the log comes."""

    def __init__(self, steps: list[StepRecord], batch_size: int, total: int) -> None:
        self.replay = Replay()
        self.commits = 0
        self.batch_size, self.total = batch_size, total
        self._steps = {step.events: step for step in steps}
        self._version = 0

    def apply(self, event: Event) -> None:
        self.replay.apply(event)
        if event.kind == "commit":
            self._commit(event)

    def _commit(self, event: Event) -> None:
        self.commits += 1
        if event.version != self._version + 1:
            raise Inconsistent(f"line {self.replay.lines}: version {event.version} follows version {self._version}; each commit adds one")
        self._version = event.version
        trained = min(self.commits * self.batch_size, self.total)
        if self.replay.counts["trained"] != trained:
            raise Inconsistent(
                f"line {self.replay.lines}: {self.replay.counts['trained']} groups are trained at version {event.version}; "
                f"{self.commits} commits of {self.batch_size} groups make {trained}"
            )
        step = self._steps.pop(self.replay.lines, None)
        if step is None:
            raise Inconsistent(f"line {self.replay.lines}: the commit of version {event.version} has no line in metrics.jsonl that says so")
        if step.ledger != self.replay.ledger():
            raise Inconsistent(f"version {event.version}: metrics.jsonl says {step.ledger}, the event log makes {self.replay.ledger()}")

    def finish(self, summary: Summary) -> None:
        """After the last line."""
        if self._steps:
            extra = [step.version for step in self._steps.values()]
            raise Inconsistent(f"metrics.jsonl has lines of the commits of versions {extra}, which the event log does not have there")
        if summary.events != self.replay.lines:
            raise Inconsistent(f"summary.json counted {summary.events} events, the event log has {self.replay.lines} lines")
        if summary.ledger != self.replay.ledger():
            raise Inconsistent(f"summary.json says {summary.ledger}, the event log makes {self.replay.ledger()}")
        if summary.versions != self._version:
            raise Inconsistent(f"summary.json says version {summary.versions}, the event log ends at {self._version}")
        if summary.exit_reason == "completed":
            self._complete()

    def _complete(self) -> None:
        if self.replay.still_open():
            raise Inconsistent(f"the run completed, but the lives of these groups do not end: {self.replay.still_open()[:10]}")
        if len(self.replay.trained) != self.total:
            raise Inconsistent(f"the run completed with {len(self.replay.trained)} groups trained; it was to train {self.total}")


def check_run(run_dir: Path) -> Checker:
    """Raises Inconsistent for the first contradiction, FileNotFoundError for a run that left no logs."""
    config = RunConfig.decode((run_dir / "config.json").read_bytes())
    summary = msgspec.json.decode((run_dir / SUMMARY).read_bytes(), type=Summary)
    checker = Checker(read_metrics(run_dir), config.batch_size, config.total_groups)
    for event in read_events(run_dir / EVENTS):
        checker.apply(event)
    checker.finish(summary)
    return checker


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m asyncflow.observe.ledger_checker", description="Check a run's ledger against its event log.")
    parser.add_argument("run_dir", type=Path)
    run_dir = parser.parse_args().run_dir
    try:
        checker = check_run(run_dir)
    except Inconsistent as error:
        print(f"{run_dir}: {error}", file=sys.stderr)
        return 1
    except FileNotFoundError as error:
        print(f"{run_dir}: {error.filename} is missing: there is nothing to check", file=sys.stderr)
        return 2
    trained = len(checker.replay.trained)
    again = f", {len(checker.replay.replayed)} of them replayed {checker.replay.replayed.total()} times" if checker.replay.replayed else ""
    print(f"{run_dir}: {checker.replay.lines} events, {checker.commits} commits, {trained} groups trained once each{again}; the ledger balances")
    return 0


if __name__ == "__main__":
    sys.exit(main())
