"""One run of the real control plane over emulated accelerators, and what was measured of it between two commits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import msgspec

from asyncflow.engines.emulated.config import emulated_config
from asyncflow.launch.local import LocalLauncher
from asyncflow.observe.ledger_checker import check_run
from asyncflow.observe.records import METRICS, StepRecord
from asyncflow.observe.summary import read_metrics, summarise, write_summary
from asyncflow.sizing.costs import CostTable, Split
from benchmarks.processes import Usage, idle_share, memory_mib, own_share, usage, with_library

ENOUGH = "measured"  # why such a run ends
SPARE_WINDOWS = 2  # prompts beyond the measured steps, in windows: admission must not stop before, for the end of a run is not what is measured


class Plan(msgspec.Struct, frozen=True):
    costs: CostTable
    split: Split
    staleness: int
    policy: Literal["wait", "drop"]
    warmup: int  # commits before the measured ones
    steps: int  # measured ones
    time_scale: float


class Measured(msgspec.Struct, frozen=True):
    """Times are modelled seconds unless a name says otherwise."""

    plan: Plan
    seconds: float
    tokens: float  # response tokens trained
    samples: float
    staleness_mean: float  # over tokens
    staleness_max: float
    dropped_groups: int
    idle_share: float  # of the machine's CPU, between the two commits
    own_share: float  # of it, what the run's own processes took
    processes: int
    start_real_s: float  # from the launcher's start until everybody was registered
    memory_mib: float
    torch: list[str]  # processes that have torch mapped

    @property
    def tokens_per_s_device(self) -> float:
        return self.tokens / self.seconds / self.plan.split.devices


class Watcher:
    """Called by the launcher about once a second: looks at the processes when the measured steps begin and end, then stops the run."""

    def __init__(self, plan: Plan, run_dir: Path) -> None:
        self._plan, self._metrics = plan, run_dir / METRICS
        self.launcher: LocalLauncher | None = None
        self.begin: Usage | None = None
        self.end: Usage | None = None
        self.memory_mib = 0.0
        self.torch: list[str] = []
        self.processes = 0

    def __call__(self) -> None:
        assert self.launcher is not None
        commits = self._metrics.read_bytes().count(b"\n") if self._metrics.exists() else 0
        pids = {name: child.pid for name, child in self.launcher.nursery.children.items() if child.pid is not None}
        if self.begin is None and commits >= self._plan.warmup:
            self.begin = usage(pids)
        if self.end is None and commits >= self._plan.warmup + self._plan.steps:
            self.end = usage(pids)
            self.processes, self.memory_mib, self.torch = len(pids), memory_mib(pids.values()), with_library(pids, "libtorch")
            if self.launcher.link is not None:
                self.launcher.link.stop(ENOUGH)


def run_emulated(plan: Plan, run_dir: Path) -> Measured:
    """Blocks for the whole run. Raises RuntimeError when it ends before the last measured step, Inconsistent when its books are wrong."""
    run_dir.mkdir(parents=True)
    window = plan.staleness + 1
    config = emulated_config(
        plan.costs,
        plan.split,
        staleness=plan.staleness,
        policy=plan.policy,
        steps=plan.warmup + plan.steps + SPARE_WINDOWS * window,
        time_scale=plan.time_scale,
        run_dir=run_dir,
    )
    watcher = Watcher(plan, run_dir)
    said: list[tuple[float, str]] = []
    launcher = watcher.launcher = LocalLauncher(config, lambda line: said.append((time.monotonic(), line)), tick=watcher)
    begun_s = time.monotonic()
    reason = launcher.run()
    if reason != ENOUGH or watcher.begin is None or watcher.end is None:
        raise RuntimeError(f"the emulated run of {plan.split} ended early: {reason}; see {run_dir}\n" + "\n".join(line for _, line in said))
    write_summary(run_dir, summarise(run_dir, reason, time.monotonic() - begun_s, launcher.nursery.restarts))
    check_run(run_dir)
    registered_s = max(at_s for at_s, line in said if line.startswith("registered"))
    return _measured(plan, read_metrics(run_dir), watcher, watcher.begin, watcher.end, registered_s - begun_s)


def _measured(plan: Plan, steps: list[StepRecord], watcher: Watcher, begin: Usage, end: Usage, start_real_s: float) -> Measured:
    until = plan.warmup + plan.steps
    steps, before = steps[plan.warmup : until], steps[plan.warmup - 1]
    tokens = [step.info["tokens"] for step in steps]
    mean = sum(step.info["staleness_mean"] * count for step, count in zip(steps, tokens, strict=True)) / sum(tokens)
    return Measured(
        plan=plan,
        seconds=(steps[-1].t_s - before.t_s) * plan.time_scale,
        tokens=sum(tokens),
        samples=sum(step.info["rows"] for step in steps),
        staleness_mean=mean,
        staleness_max=max(step.info["staleness_max"] for step in steps),
        dropped_groups=sum(count for state, count in steps[-1].ledger.items() if state.startswith("dropped")),
        idle_share=idle_share(begin, end),
        own_share=own_share(begin, end),
        processes=watcher.processes,
        start_real_s=start_real_s,
        memory_mib=watcher.memory_mib,
        torch=watcher.torch,
    )
