"""Who only moves weights needs no torch: arrays are published and pulled as tensors are, bit for bit."""

from __future__ import annotations

import sys
from subprocess import run

import numpy as np
import pytest
import torch

from checkpoint_engine.copy_out import copy_out
from checkpoint_engine.digest import digested, weights_digest
from checkpoint_engine.manifest import PLAIN_BYTES, ManifestError, dtype_of, element_bytes, view_array
from checkpoint_engine.weights_id import WeightsId
from shared_arena import Arena

ARRAYS = {
    "matrix": np.arange(15, dtype=np.float32).reshape(3, 5),
    "strided": np.arange(40, dtype=np.int64)[::4],
    "odd": np.arange(7, dtype=np.uint8),
    "empty": np.zeros((0, 3), dtype=np.float32),
    "scalar": np.array(2.5, dtype=np.float64),
    "truths": np.array([True, False]),
}

MOVE = """
import sys, threading
import numpy as np
from checkpoint_engine import Publisher, PublisherClient, Receiver, WeightsId
over, ready = threading.Event(), threading.Event()
publisher = Publisher(model="policy", transport="pull")
serving = threading.Thread(target=publisher.run, args=(over,))
serving.start()
receiver = Receiver("rollout-0#0", publisher.endpoint, collective=False, on_ready=lambda weights: ready.set())
trainer = PublisherClient(publisher.endpoint)
trainer.publish(WeightsId("policy", 0, 0), [("weight", np.arange(5000, dtype=np.float32))], wait_s=5.0)
receiver.want(WeightsId("policy", 0, 0))
assert ready.wait(10)
receiver.close(); trainer.close(); over.set(); serving.join(10)
assert receiver.counters.by_pull_shared == 1 and receiver.counters.corrupt == 0
assert "torch" not in sys.modules
"""


def test_arrays_have_the_digest_of_tensors_with_the_same_values() -> None:
    arena = Arena()
    manifest = digested(copy_out(arena, WeightsId("policy", 0, 0), ARRAYS.items()), arena.array)
    assert manifest.weights.digest == weights_digest((name, torch.from_numpy(array)) for name, array in ARRAYS.items())


def test_the_table_of_plain_types_says_what_torch_says() -> None:
    assert {name: dtype_of(name).itemsize for name in PLAIN_BYTES} == PLAIN_BYTES
    assert element_bytes("float8_e4m3fn") == 1


def test_a_version_is_published_and_pulled_by_processes_that_never_load_torch() -> None:
    done = run([sys.executable, "-c", MOVE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_an_array_of_the_other_byte_order_is_published_in_this_machines() -> None:
    arena = Arena()
    swapped = np.arange(7, dtype=np.dtype(np.float32).newbyteorder())
    manifest = copy_out(arena, WeightsId("policy", 0, 0), [("weight", swapped)])
    assert manifest.tensors[0].dtype == "float32"
    assert np.array_equal(view_array(arena.array, manifest.tensors[0]), np.arange(7, dtype=np.float32))


@pytest.mark.parametrize(
    "array",
    [np.array([1, None], dtype=object), np.array(["a"]), np.array([b"a"]), np.zeros(2, dtype="datetime64[s]"), np.zeros(2, dtype=[("a", "f4")])],
    ids=lambda array: str(array.dtype.kind),
)
def test_an_array_that_no_receiver_could_read_is_refused_by_the_publishers_side(array: np.ndarray) -> None:
    """Before, it was copied, sent and refused by every receiver, who then went on with the old weights for ever."""
    with pytest.raises(ManifestError, match="tensor 'weight'"):
        copy_out(Arena(), WeightsId("policy", 0, 0), [("weight", array)])
