"""The shell commands that README and docs show, as they stand there, and how each of them is run in CI.

A `sh` block holds one command a line (a backslash continues it; what follows ` # ` is a comment). Every one is run and must end with exit code 0,
or with the N of a comment `# exits with N`. `text checked` right under a block of one command is that command's output, compared line by line; a
line of three dots stands for any number of lines.
"""

from __future__ import annotations

import itertools
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.packaging.markdown import DOCS, ROOT, Fence, fences

SHORT = ("run.steps=3", "evaluation.items=64")  # appended to every `asyncflow train`
FAR, NEAR = "10.0.0.5", "127.0.0.1"  # an address of another machine in the docs, and what stands for it here

NOT_RUN = {  # command → why it is not run; every entry is in use, or the test fails
    "make demo": "`.ci/run` runs it, cut short to three steps",
    "make test": "it is what runs the tests",
    "pip install -e '.[math]'": "`make venv-dev` installs the same packages, pinned",
    "pip install -e '.[ray]'": "`make venv-dev` installs the same package, pinned",
    "python -m asyncflow.data.gsm8k --train train.jsonl --test test.jsonl --out data/gsm8k": "tests/data/test_gsm8k.py runs it on files of its own",
    "asyncflow train recipes/gsm8k_qwen": "the model is not at hand; tests/pipeline/test_gsm8k_recipe.py trains the recipe with a tiny one",
    **{
        f"python benchmarks/{name}.py --json {name}.json --quick{more}": f"tests/benchmarks/{test} runs it, and looks at every row"
        for name, more, test in (
            ("transfer_queue", " --no-peers", "test_transfer_queue_bench.py"),
            ("weights", "", "test_weights_bench.py"),
            ("pipeline", "", "test_pipeline.py"),
        )
    },
    ".venv-vllm/bin/asyncflow train recipes/quickstart/vllm.yaml": "tests/vllm/test_vllm_quickstart.py runs the whole of it",
    ".venv-vllm/bin/python benchmarks/rollout.py --json rollout.json --quick": "tests/benchmarks/test_rollout_bench.py runs it",
    "benchmarks/cuda_smoke.sh": "it needs a CUDA device; tests/benchmarks/test_device_smoke.py runs its Python on the CPU",
    "make venv-verl": "`make test-verl` runs it",
    **dict.fromkeys(
        (
            "python -m recipes.verl.main trainer.total_training_steps=100 data.train_files=… actor_rollout_ref.model.path=…",
            "python -m recipes.verl.main … --explain",
        ),
        "it wants a model and data; `make test-verl` runs both with tiny ones (tests/verl/test_verl_recipe.py, test_verl_recipe_config.py)",
    ),
    "python -m verl.trainer.main_ppo trainer.v1.trainer_mode=asyncflow …": "`make test-verl` runs it (tests/verl/test_verl_registered.py)",
    ".venv-verl/bin/python benchmarks/verl_queue.py --json verl_queue.json": "ten minutes of verl, whose runs `make test-verl` has (test_v1_runs.py)",
    **dict.fromkeys(
        (f"python -m transfer_queue status --controller tcp://127.0.0.1:4712{more}" for more in ("", " --json")),
        "tests/transfer_queue/operation/test_operation_page.py runs it beside the queue that the command above it starts",
    ),
}


@dataclass(frozen=True)
class Command:
    text: str  # as a shell reads it, comment off
    exit_code: int
    place: str  # of its block, PAGE:LINE
    output: str | None  # of the `text checked` block under it

    @property
    def words(self) -> list[str]:
        """Without the variables set in front of it."""
        words = shlex.split(self.text)
        return list(itertools.dropwhile(lambda word: re.fullmatch(r"\w+=\S*", word), words))

    @property
    def trains(self) -> bool:
        return self.words[:2] == ["asyncflow", "train"] and "--dry-run" not in self.words

    @property
    def joins(self) -> bool:
        """It is a worker, which ends with its run."""
        return self.words[:3] == ["python", "-m", "asyncflow.worker"] and "--help" not in self.words

    @property
    def watches(self) -> bool:
        """It looks at a run while it goes on."""
        return self.follows or self.words[:2] == ["asyncflow", "watch"] or self.words[:4] == ["python", "-m", "transfer_queue", "status"]

    @property
    def follows(self) -> bool:
        """It goes on until the run ends, or until Ctrl-C."""
        if self.words[:3] == ["python", "-m", "transfer_queue"]:
            return self.words[3:4] in (["serve"], ["metrics"]) or "--watch" in self.words
        return self.words[:2] == ["asyncflow", "watch"] and "--once" not in self.words


def shown_pages() -> list[Path]:
    """Where commands are shown to users."""
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "recipes").rglob("README.md")), *(ROOT / "benchmarks").glob("README.md")]


def commands() -> list[Command]:
    """Every command once, whichever page shows it; one with its output rather than one without."""
    found: dict[str, Command] = {}
    for page in shown_pages():
        blocks = fences(page)
        for block, below in itertools.zip_longest(blocks, blocks[1:]):
            if block.language == "sh":
                for command in _of(block, below):
                    if command.text not in found or command.output is not None:
                        found[command.text] = command
    return list(found.values())


def _of(block: Fence, below: Fence | None) -> list[Command]:
    lines = [line for line in block.body.replace("\\\n", " ").splitlines() if line.strip() and not line.lstrip().startswith("#")]
    checked = below is not None and below.info == "text checked" and len(lines) == 1
    return [_command(line, block.place, below.body if below is not None and checked else None) for line in lines]


def _command(line: str, place: str, output: str | None) -> Command:
    text, _, comment = line.partition(" # ")
    code = re.search(r"exits with (\d+)", comment)
    return Command(" ".join(text.split()), int(code[1]) if code else 0, place, output)


def shortened(text: str, run_dir: Path) -> str:
    """An `asyncflow train` with few steps, into a directory of the test."""
    kept = re.sub(r" --run-dir \S+", "", text)
    return f"{kept} {' '.join(SHORT)} run.cache=cache --run-dir {run_dir}"


def missing_lines(shown: str, said: str) -> list[str]:
    """Lines of `shown` that `said` does not have, or not in this order."""
    left = iter(line.rstrip() for line in said.splitlines())
    return [line for line in map(str.rstrip, shown.splitlines()) if line.strip() != "…" and line not in left]
