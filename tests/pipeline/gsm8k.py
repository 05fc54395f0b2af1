"""The recipe gsm8k_qwen as it stands, with a tiny model and tiny files in place of the real ones."""

from __future__ import annotations

from pathlib import Path

from asyncflow.config import RunConfig
from asyncflow.rewards.verdict import Verdict
from tests.data.math_files import row, write_model, write_rows
from tests.packaging.markdown import ROOT
from tests.pipeline.harness import Run, assert_completed, configure

RECIPE = ROOT / "recipes/gsm8k_qwen"
QUESTIONS, TESTS, LONG = 40, 6, 3
STEPS, ROWS = 32, 64
TINY = (  # what a tiny model on a small machine differs in
    f"run.steps={STEPS}",
    "staleness=1",
    "batch_size=8",
    "rollout.slots=64",
    "rollout.prompt_width=8",
    "rollout.response_width=8",
    "algorithm.learning_rate=0.01",
    "algorithm.warmup_steps=0",
    "algorithm.micro_batch_groups=8",
    f"evaluation.every={STEPS}",
    f"evaluation.items={TESTS}",
    "task.options.forms=[last_number]",  # random weights do not know any other form
    "task.options.compare_s=60",
    "limits={start_s:300,lease_s:300,heartbeat_s:15,stall_s:600,drain_s:15,reward_s:200}",
)


def tiny(folder: Path, *overrides: str) -> RunConfig:
    """Questions whose answer is 7, so that one is soon found by chance; of some it is 7/2, which math-verify compares with what was sampled."""
    questions = [row(f"{index}+?", "7" if index % 4 else "7/2") for index in range(10, 10 + QUESTIONS + TESTS)]
    long = [row("1234567890", "7") for _ in range(LONG)]
    train = write_rows(folder / "files/train.parquet", [*questions[:QUESTIONS], *long, *questions[QUESTIONS : QUESTIONS + 2]])
    test = write_rows(folder / "files/test.parquet", questions[QUESTIONS:])
    files = (f"models.policy.path={write_model(folder / 'model')}", f"task.options.train={train}", f"task.options.held_out={test}")
    return configure(folder / "run", *files, *TINY, *overrides, recipe=RECIPE)


def assert_learned(run: Run) -> None:
    """It completed; every row of the files and every zero is accounted for; and right answers came to be frequent."""
    assert_completed(run)
    (counts,) = (event.data for event in run.events if event.kind == "report" and event.reason == "data")
    assert counts == {"rows": QUESTIONS + LONG + 2, "kept": QUESTIONS, "too_long": LONG, "held_out": 2, "held_out_repeats": 0}
    for line in run.metrics:
        verdicts = {verdict: line.info[f"verdict_{verdict.name.lower()}"] for verdict in Verdict}
        assert sum(verdicts.values()) == line.info["rows"] == ROWS
        assert verdicts[Verdict.RIGHT] == line.info["reward_mean"] * ROWS
        assert verdicts[Verdict.TIMEOUT] == verdicts[Verdict.FAILED] == 0
    assert set(run.summary.evaluations) == {0, STEPS}
    assert share(run, Verdict.UNFINISHED, last=True) < share(run, Verdict.UNFINISHED, last=False)
    assert share(run, Verdict.RIGHT, last=True) > share(run, Verdict.RIGHT, last=False) + 0.05  # seeds 1 to 6: from 0.02 to 0.2 … 0.8


def share(run: Run, verdict: Verdict, last: bool) -> float:
    """Of the rows of the first or last 4 steps."""
    lines = run.metrics[-4:] if last else run.metrics[:4]
    return sum(line.info[f"verdict_{verdict.name.lower()}"] for line in lines) / sum(line.info["rows"] for line in lines)
