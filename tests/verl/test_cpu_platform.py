"""Each mend of verl for a CPU, beside verl as it is: without the mend the same program fails, or is silently wrong.

`STOCK` programs run with the platform alone. Should one of them go well one day, verl has mended it itself and our file can go."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.verl.children import error_of, said
from tests.verl.tiny import make_tiny

pytestmark = pytest.mark.verl

MENDED = "import verl\n"
STOCK = "import verl, recipes.verl.platform.cpu\n"
ONE_RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
WITHOUT = {"VERL_USE_EXTERNAL_PLUGINS": "none", "VERL_USE_EXTERNAL_MODULES": "recipes.verl.platform.cpu"}
GROUP = "import torch; torch.distributed.init_process_group('gloo', store=torch.distributed.HashStore(), rank=0, world_size=1)\n"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


# Which platform a process takes
DETECTED = "from verl.plugin.platform import platform_manager as m, get_platform; print(m._detect_platform_name(), get_platform().device_name)"


def test_the_platform_is_taken_only_where_it_is_asked_for() -> None:
    """A driver without a GPU on a cluster of GPUs must not become a driver of CPUs."""
    assert said(f"import verl; {DETECTED}", VERL_PLATFORM="cpu") == "cpu cpu"
    assert said(f"import verl; {DETECTED}", VERL_PLATFORM="") == "nvidia cuda"


def test_one_that_says_it_is_there_would_be_taken_by_every_process_without_a_gpu() -> None:
    code = f"""
import verl
from verl.plugin.platform import PlatformRegistry
from recipes.verl.platform.cpu import CpuPlatform
PlatformRegistry.register(platform="cpu")(type("Says", (CpuPlatform,), {{"is_platform_available": lambda self, use_smi_check=False: True}}))
{DETECTED}"""
    assert said(code, VERL_PLATFORM="") == "cpu cpu"


def test_an_actor_of_ray_takes_the_drivers_platform_from_its_environment() -> None:
    code = """
import ray, verl, tempfile
with tempfile.TemporaryDirectory(prefix="r") as folder:
    ray.init(num_cpus=2, object_store_memory=80 << 20, include_dashboard=False, _temp_dir=folder, logging_level="ERROR")
    @ray.remote
    def there():
        import verl
        from verl.utils.device import get_device_name, get_device_id, get_nccl_backend
        return get_device_name(), get_device_id(), get_nccl_backend()
    found = ray.get(there.remote(), timeout=50)
    ray.shutdown()
print(found)"""
    assert said(code, limit_s=110) == "('cpu', 'cpu', 'gloo')"


def test_the_device_module_has_what_verl_calls_and_equals_torch_cpu() -> None:
    code = """
import verl, torch
from verl.utils.device import get_torch_device
from verl.utils.memory_utils import get_memory_info, reset_memory_stats, aggressive_empty_cache
device = get_torch_device()
assert device == torch.cpu and device != torch.cuda and device.is_available()
reset_memory_stats(); aggressive_empty_cache(force_sync=True); device.ipc_collect(); device.set_per_process_memory_fraction(0.9)
free, whole = device.mem_get_info()
assert 0 < device.memory_allocated() <= device.max_memory_allocated() < whole and 0 < free < whole
state = device.get_rng_state(); first = torch.rand(3); device.set_rng_state(state)
assert torch.equal(first, torch.rand(3))
with device.stream(device.current_stream()): device.synchronize()
from verl.utils.flops_counter import get_device_flops
print(get_memory_info()["total_memory_gb"] > 0.1, get_device_flops() > 0)"""
    assert said(code) == "True True"


# backend_string
INITIALIZE = """
import torch
from verl.utils.distributed import initialize_global_process_group_ray
initialize_global_process_group_ray()
print(torch.distributed.get_world_size())"""


def test_a_group_of_the_whole_world_forms_though_the_device_is_the_cpu() -> None:
    assert said(MENDED + INITIALIZE, **ONE_RANK, MASTER_PORT="29711") == "1"


def test_verl_itself_names_the_cpu_twice_and_torch_refuses() -> None:
    status, error = error_of(STOCK + INITIALIZE, **ONE_RANK, **WITHOUT, MASTER_PORT="29712")
    assert status == 1
    assert "cpu:gloo,cpu:gloo" in error


# old_policy
OLD_POLICY = f"""
{GROUP}
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
from verl.utils.fsdp_utils import fsdp2_sharded_save_to_cpu, fsdp2_sharded_load_from_cpu
model = torch.nn.Linear(4, 4)
fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
before = model.weight.full_tensor().detach().clone()
kept, spec = fsdp2_sharded_save_to_cpu(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
model(torch.ones(2, 4)).sum().backward(); optimizer.step()
after = model.weight.full_tensor().detach().clone()
assert not torch.equal(before, after)
fsdp2_sharded_load_from_cpu(model, kept, spec)
print("old" if torch.equal(model.weight.full_tensor(), before) else "new")"""


def test_the_old_policy_stays_the_old_one() -> None:
    assert said(MENDED + OLD_POLICY) == "old"


def test_verl_itself_takes_the_new_policy_for_the_old_one_and_says_nothing() -> None:
    assert said(STOCK + OLD_POLICY, **WITHOUT) == "new"


# engines
ENGINE = """
{group}
import mmap, os, sys
from functools import partial
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.trainer.config import CheckpointConfig
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine import EngineRegistry
model = HFModelConfig(path={path!r}, use_remove_padding=False, override_config={{"attn_implementation": "sdpa"}})
config = FSDPEngineConfig(strategy="fsdp2", forward_only={forward_only}, model_dtype="fp32", use_torch_compile=False, use_dynamic_bsz=False,
                          micro_batch_size_per_gpu=2, infer_micro_batch_size_per_gpu=2, use_remove_padding=False,
                          mixed_precision={{"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}})
engine = EngineRegistry.new(model_type="language_model", backend="fsdp2", model_config=model, engine_config=config,
                            optimizer_config=None if {forward_only} else FSDPOptimizerConfig(lr=1e-3), checkpoint_config=CheckpointConfig())
engine.initialize()
"""
WRITES = """
import numpy, tempfile
def mapped(values):  # as a queue hands rows out: memory that is mapped read-only
    array = numpy.asarray(values)
    with tempfile.TemporaryFile() as file:
        file.write(array.tobytes()); file.flush()
        area = mmap.mmap(file.fileno(), array.nbytes, prot=mmap.PROT_READ)
    return torch.frombuffer(area, dtype=torch.int64)
lengths = torch.tensor([0, 5, 9])
def jagged(values): return torch.nested.nested_tensor_from_jagged(mapped(values), lengths)
columns = {"input_ids": jagged(numpy.arange(9) + 5), "position_ids": jagged([0, 1, 2, 3, 4, 0, 1, 2, 3]), "loss_mask": jagged([1] * 9)}
data = TensorDict({**columns, "score": mapped([4, 5])}, batch_size=[2])  # jagged columns are copied when a batch is split, others are not
tu.assign_non_tensor(data, temperature=1.0, use_remove_padding=False, use_dynamic_bsz=False, micro_batch_size_per_gpu=2, global_batch_size=2,
                     pad_token_id=0, use_fused_kernels=False)
def loss(model_output, data, dp_group=None):
    data["score"].mul_(0)  # a loss of somebody's own that uses its input for scratch
    return model_output["log_probs"].values().sum(), {}
with engine.eval_mode():
    engine.forward_backward_batch(data, loss, forward_only=True)
print(data["score"].sum().item())"""


def engine(tiny: Path, forward_only: bool = False) -> str:
    return ENGINE.format(group=GROUP, path=str(tiny), forward_only=forward_only)


def test_a_loss_that_writes_into_its_input_writes_into_a_copy(tiny: Path) -> None:
    assert said(MENDED + engine(tiny) + WRITES, limit_s=100) == "9"


def test_verl_itself_writes_into_memory_that_is_mapped_read_only_and_dies(tiny: Path) -> None:
    status, _ = error_of(STOCK + engine(tiny) + WRITES, limit_s=100, **WITHOUT, VERL_ENGINE_DEVICE="cuda")
    assert status in (-signal.SIGSEGV, 128 + signal.SIGSEGV)


def test_an_engine_that_only_infers_does_not_ask_for_pinned_memory(tiny: Path) -> None:
    assert said(MENDED + engine(tiny, forward_only=True) + "print(type(engine).__name__)", limit_s=100) == "FSDPEngineWithLMHeadOnCpu"


def test_verl_itself_has_no_engine_for_a_cpu_and_pins_what_it_offloads(tiny: Path) -> None:
    status, error = error_of(STOCK + engine(tiny), limit_s=100, **WITHOUT)
    assert status == 1
    assert "No engine registered for device='cpu'" in error
    status, error = error_of(STOCK + engine(tiny, forward_only=True), limit_s=100, **WITHOUT, VERL_ENGINE_DEVICE="cuda")
    assert status == 1
    assert "pin" in error.lower()


# value_head
VALUE_HEAD = """
import torch
from transformers import AutoConfig
from verl.utils.model import load_valuehead_model
config = AutoConfig.from_pretrained({path!r}, num_labels=1)
print(load_valuehead_model({path!r}, torch.float32, config, False).config._attn_implementation)"""


def test_a_critic_is_loaded_without_flash_attention(tiny: Path) -> None:
    assert said(MENDED + VALUE_HEAD.format(path=str(tiny))) == "sdpa"


def test_verl_itself_asks_for_flash_attention_whatever_is_configured(tiny: Path) -> None:
    status, error = error_of(STOCK + VALUE_HEAD.format(path=str(tiny)), **WITHOUT)
    assert status == 1
    assert "flash_attn" in error.lower() or "flash attention" in error.lower()


# plain_weights
LOADS_AGAIN = """
from safetensors.torch import load_file
from vllm import LLM, SamplingParams
def again(model):
    model.load_weights([(name, -tensor) for name, tensor in load_file({path!r} + "/model.safetensors").items()])
def tokens(llm):
    sampling = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    return list(llm.generate([{{"prompt_token_ids": [5, 6, 7]}}], sampling, use_tqdm=False)[0].outputs[0].token_ids)
if __name__ == "__main__":
    llm = LLM(model={path!r}, dtype="float32", enforce_eager=True, max_model_len=64, kv_cache_memory_bytes=32 << 20, disable_log_stats=True,
              distributed_executor_backend="uni")
    first = tokens(llm)
    llm.apply_model(again)
    print(first != tokens(llm))"""
VLLM = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}


def test_vllm_takes_weights_again_after_the_first_load_and_computes_with_them(tiny: Path) -> None:
    assert said(MENDED + LOADS_AGAIN.format(path=str(tiny)), limit_s=150, **VLLM) == "True"


def test_vllm_itself_has_thrown_away_what_a_second_load_would_fill(tiny: Path) -> None:
    status, _ = error_of(STOCK + LOADS_AGAIN.format(path=str(tiny)), limit_s=150, **VLLM, **WITHOUT)
    assert status != 0
