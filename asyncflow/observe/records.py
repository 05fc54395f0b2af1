"""The shapes of `metrics.jsonl`, `timeline.jsonl` and `summary.json`: what a run says about itself."""

from __future__ import annotations

import msgspec

from asyncflow.observe.outcomes import Outcome

METRICS, EVENTS, SUMMARY = "metrics.jsonl", "events.jsonl", "summary.json"
TIMELINE = "timeline.jsonl"
CONTROLLER_URL = "controller.url"  # where the controller listens, from the moment it does: for `python -m transfer_queue status`
JOURNAL = "journal"  # folder: what the controller comes back out of
STALL = "stall.json"  # only where the run made no progress: a `transfer_queue.messages.StallReport`
COMPLETED, INTERRUPTED = "completed", "interrupted"  # exit reasons; every other one is a failure, in words


class StageDepth(msgspec.Struct, frozen=True):
    """The queue in front of one stage at a commit."""

    ready_rows: int
    leased_rows: int
    done_rows: int  # since the run's start


class CostSums(msgspec.Struct, frozen=True):
    """Sufficient statistics of calls that cost `a + b·size` seconds each: sums since the run's start over all workers, dead ones included.

    `size` is the number of running requests for a decode step ("rollout.decode") and tokens for everything else.
    """

    calls: float = 0.0
    size: float = 0.0
    size_squared: float = 0.0
    seconds: float = 0.0
    size_seconds: float = 0.0  # Σ size·seconds


class Span(msgspec.Struct, frozen=True, array_like=True):
    """One stretch of one thread's time. What no span covers was spent waiting."""

    thread: str  # "main" | "writer" | "receiver"
    activity: str  # "busy" | "paused"
    what: str  # the phase: compute, put, commit, publish, load, receive, evaluate, …
    start_s: float  # on the controller's clock, like `Event.t_s`
    end_s: float


class TimelineRecord(msgspec.Struct, frozen=True):
    """One line of timeline.jsonl: what a worker did since its line before."""

    member: str  # "name#incarnation"
    role: str
    from_s: float  # the spans cover [from_s, until_s]
    until_s: float
    spans: list[Span]
    lengths: list[int] = []  # tokens of the responses that this worker finished meanwhile


class StepRecord(msgspec.Struct, frozen=True):
    """One line of metrics.jsonl: one commit. Rates are over the time since the line before. None means not measured, never 0."""

    version: int  # after the commit
    t_s: float  # seconds since the controller's start
    events: int  # lines of events.jsonl up to and with this commit
    reward_mean: float | None
    staleness_mean: float | None  # versions, over all trained tokens of the step
    staleness_p95: float | None
    staleness_max: float | None
    permits: int  # groups that might still be admitted; -1 where bytes alone bound them
    open_groups: int
    ledger: dict[str, int]  # groups by state, dropped ones as "dropped:reason"
    prompts_waiting: int
    queue_rows: int  # rows stored for open groups
    queue_bytes: int  # reserved for them at their worst case
    shares: dict[str, dict[str, float]]  # role → share of its workers' time that was busy, wait, paused
    tokens_per_s: float | None  # trained tokens
    tokens_per_s_device: float | None  # the same over all devices of all roles
    info: dict[str, float]  # the trainer's own numbers of the step, finite ones; the event log has the others
    stages: dict[str, StageDepth] = {}  # by consuming stage, terminal ones included
    costs: dict[str, CostSums] = {}  # "rollout.prefill", "rollout.decode", and every other stage by its name


class Summary(msgspec.Struct, frozen=True):
    """summary.json. None means not measured, never 0."""

    exit_reason: str  # "completed" or why not
    accuracy_before: float | None
    accuracy_after: float | None
    seconds: float  # from the controller's start to the last event; installation, warm start and process start excluded
    seconds_total: float  # of the whole command
    versions: int
    staleness_max: float | None
    ledger: dict[str, int]
    weights_digest: str | None  # of the last published version
    trained_groups: int
    trained_tokens: int
    mixed_version_share: float | None  # of the trained sequences, those with tokens of two or more versions
    overlap: float | None  # at least this share of the time rollout and trainer were busy at once
    trained: Outcome | None  # length and age of what was trained
    dropped: Outcome | None  # and of what was dropped on the way
    evaluations: dict[int, float]  # accuracy by version
    restarts: dict[str, int]  # by worker
    events: int  # lines of events.jsonl
    traceback: str | None  # of the worker that raised, if one did
    exported: str | None  # directory of the last exported weights
    exported_version: int | None  # which they are: after a crash they may be older than `weights_digest`
    run_dir: str
