"""Weights & Biases with the real package, offline, read back from the file that it would send. Skipped where it is not installed."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from asyncflow.observe.summary import summarise
from asyncflow.observe.writers.interface import WriterContext
from tests.observe.live.run_files import run_config, step
from tests.observe.writers.own import Words

wandb = pytest.importorskip("wandb", reason="wandb is not installed: pip install 'asyncflow[wandb]'")


@pytest.mark.tools
def test_steps_evaluations_and_summary_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from asyncflow.observe.writers.wandb import make

    for name, value in {"WANDB_MODE": "offline", "WANDB_CACHE_DIR": str(tmp_path), "WANDB_CONFIG_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    words, config = Words(), run_config(tmp_path, "observe.wandb_project=mine")
    writer = make(WriterContext(config=config, run_dir=config.run_dir, say=words.say))
    writer.step(step(1, reward_mean=0.0))
    writer.step(step(2, reward_mean=None))
    writer.evaluation(0, 0.25, 1.5)
    writer.close(summarise(config.run_dir, "completed", 9.0, {}))
    wandb.teardown()  # as at the end of the process: its service brings the file to disk
    records = read(next((config.run_dir / "wandb").glob("offline-run-*/run-*.wandb")))
    history = [{item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item} for record in records]
    rows = [row for row in history if "version" in row]
    assert [row["version"] for row in rows] == [1, 2, 0]
    assert rows[0]["reward/mean"] == 0.0
    assert "reward/mean" not in rows[1]  # None is no 0
    assert rows[2]["evaluation/accuracy"] == 0.25
    assert "mine" in {record.run.project for record in records}
    assert [record.exit.exit_code for record in records if record.WhichOneof("record_type") == "exit"] == [0]
    assert words.lines == [f"wandb: offline, in {config.run_dir}/wandb"]


def read(path: Path) -> list[Any]:
    """Every record of a run file of wandb's: protocol buffers in a LevelDB log, which is 32 KiB blocks of chunks under a header of seven bytes."""
    from wandb.proto import wandb_internal_pb2

    data, block, records, begun = path.read_bytes(), 32768, [], b""
    at = 7  # the file's own header
    while at + 7 <= len(data):
        length, kind = struct.unpack_from("<HB", data, at + 4)
        if kind == 0 or block - at % block < 7:  # padding up to the next block
            at += block - at % block
            continue
        begun += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # the whole record, or the last part of it
            record = wandb_internal_pb2.Record()
            record.ParseFromString(begun)
            records.append(record)
            begun = b""
    return records
