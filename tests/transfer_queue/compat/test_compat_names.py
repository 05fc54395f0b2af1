"""Importing the package stays free; its interface is there when it is asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60, capture_output=True, text=True).stdout.strip()


def test_importing_the_queue_and_its_modules_loads_neither_compat_nor_torch_nor_ray() -> None:
    code = (
        "import sys, transfer_queue; from transfer_queue import messages, columns; hasattr(transfer_queue, 'nobody'); dir(transfer_queue); "
        "print([name for name in ('transfer_queue.compat', 'torch', 'ray', 'tensordict', 'zmq') if name in sys.modules])"
    )
    assert run(code) == "[]"


def test_metas_need_no_torch_and_are_the_same_object_each_time() -> None:
    code = (
        "import sys; from transfer_queue import BatchMeta, KVBatchMeta; import transfer_queue as tq; "
        "print(tq.BatchMeta is BatchMeta, KVBatchMeta(['a'], [{}]).size, BatchMeta().size, 'torch' in sys.modules)"
    )
    assert run(code) == "True 1 0 False"


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    assert run("import transfer_queue as tq; print(hasattr(tq, 'kv_nothing'), 'kv_put' in dir(tq))") == "False True"


def test_without_tensordict_it_is_a_runtime_error() -> None:
    """An ImportError would be taken for "no queue is installed", and the program goes on without one."""
    code = (
        "import sys; sys.modules['tensordict'] = None\nimport transfer_queue as tq\n"
        "try: tq.kv_put\nexcept RuntimeError as error: print('pip install tensordict' in str(error))"
    )
    assert run(code) == "True"


def test_tags_of_a_meta_are_nobody_elses() -> None:
    from transfer_queue import BatchMeta, KVBatchMeta

    tag = {"n": 1, "deep": [{"x": [1]}]}
    meta = KVBatchMeta(keys=["a", "b"], tags=[tag] * 2)
    part = meta.chunk(2)[0]
    rows = BatchMeta([1, 2], ["p", "p"], custom_meta=meta.tags)
    other = rows.copy()
    tag["deep"][0]["x"].append(2)
    meta.tags[0]["deep"].append(3)
    part.tags[0]["n"] = 4
    rows.custom_meta[1]["deep"][0]["x"].append(5)
    assert meta.tags[0]["deep"] == [{"x": [1]}, 3]
    assert part.tags == [{"n": 4, "deep": [{"x": [1]}]}]
    assert other.custom_meta[1] == {"n": 1, "deep": [{"x": [1]}]}
