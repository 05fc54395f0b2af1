"""Every YAML of recipes/gsm8k_qwen, explained: devices, splits, bytes of the real models, and that what no device has run is said to be that."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from asyncflow.cli.main import main
from asyncflow.config.errors import SettingError
from asyncflow.config.explain.explanation import Explanation, explain
from asyncflow.config.load import load
from tests.packaging.markdown import ROOT

FOLDER = ROOT / "recipes/gsm8k_qwen"
README = (FOLDER / "README.md").read_text()
CPU = (0, 0, 0, 0)


class Variant(NamedTuple):
    file: str
    kind: str
    split: tuple[int, int, int, int]  # devices of rollout, actor_forward, ref_forward, trainer
    workers: tuple[int, int, int, int]
    tensor_parallel: int
    model: str


VARIANTS = [
    Variant("config.yaml", "cpu", CPU, (1, 1, 1, 1), 1, "0.5B"),
    *(Variant(f"{name}.yaml", kind, (4, 1, 1, 2), (4, 1, 1, 2), 1, "0.5B") for name, kind in (("cuda", "cuda"), ("ascend", "npu"))),
    *(Variant(f"{name}_7b.yaml", kind, (2, 1, 1, 4), (2, 1, 1, 4), 1, "7B") for name, kind in (("cuda", "cuda"), ("ascend", "npu"))),
    *(Variant(f"{name}_7b_64.yaml", kind, (52, 2, 2, 8), (13, 2, 2, 8), 4, "7B") for name, kind in (("cuda", "cuda"), ("ascend", "npu"))),
]
PARTS = {"model_7b.yaml", "on_accelerators.yaml", "on_ascend.yaml", "on_cuda.yaml", "split_64.yaml", "split_node.yaml", "split_node_7b.yaml"}
ROLES = ("rollout", "actor_forward", "ref_forward", "trainer")
WINDOW = {"config.yaml": 384, "cuda_7b_64.yaml": 1536, "ascend_7b_64.yaml": 1536}  # groups: (k + 1) × B; 384 for all others too


class Qwen(NamedTuple):
    """Of the published config.json, and the number of parameters that the model is published with."""

    parameters: int
    hidden: int
    layers: int
    inner: int
    kv: int  # kv heads × head_dim
    vocabulary: int
    tied: bool


MODELS = {"0.5B": Qwen(494_032_768, 896, 24, 4864, 128, 151_936, True), "7B": Qwen(7_615_616_512, 3584, 28, 18_944, 512, 152_064, False)}


def header_of(model: Qwen, folder: Path) -> Path:
    """A folder with a safetensors file that has the model's header and none of its bytes: `explain` reads no more."""
    h, inner, kv = model.hidden, model.inner, model.kv
    layer = {
        "self_attn.q_proj.weight": [h, h],
        "self_attn.q_proj.bias": [h],
        **{f"self_attn.{name}_proj.{part}": shape for name in "kv" for part, shape in (("weight", [kv, h]), ("bias", [kv]))},
        "self_attn.o_proj.weight": [h, h],
        **{f"mlp.{name}_proj.weight": [inner, h] for name in ("gate", "up")},
        "mlp.down_proj.weight": [h, inner],
        "input_layernorm.weight": [h],
        "post_attention_layernorm.weight": [h],
    }
    shapes = {f"model.layers.{index}.{name}": shape for index in range(model.layers) for name, shape in layer.items()}
    shapes |= {"model.embed_tokens.weight": [model.vocabulary, h], "model.norm.weight": [h]}
    shapes |= {} if model.tied else {"lm_head.weight": [model.vocabulary, h]}
    header = json.dumps({name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return folder


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.file)
def test_a_variant_is_explained_with_its_devices_its_split_and_the_bytes_of_its_model(
    variant: Variant, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(FOLDER / variant.file), "--json", f"models.policy.path={header_of(MODELS[variant.model], tmp_path)}"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out.encode(), type=Explanation)
    roles = {role.name: role for role in found.processes.roles}
    assert found.processes.kind == variant.kind
    assert tuple(sum(map(len, roles[name].devices)) for name in ROLES) == variant.split
    assert tuple(roles[name].workers for name in ROLES) == variant.workers
    assert found.processes.devices == found.processes.placed == sum(variant.split)
    taken = [device for name in ROLES for devices in roles[name].devices for device in devices]
    assert sorted(taken) == list(range(sum(variant.split)))
    assert found.admission.permits == WINDOW.get(variant.file, 384)
    assert found.waits.warnings == []
    _memory(found, variant)


def _memory(found: Explanation, variant: Variant) -> None:
    """Bytes of samples by hand: 8 rows × 5 columns of 4 bytes a token × 1,536 tokens, prompt, item, scalars."""
    parameters, size = MODELS[variant.model].parameters, 4 if variant.kind == "cpu" else 2
    assert [(model.name, model.parameters, model.bytes) for model in found.memory.models] == [
        (name, parameters, parameters * size) for name in ("policy", "ref")
    ]
    assert len(found.memory.weights.caches) == 1 + variant.workers[0] + variant.workers[1]  # publisher, rollouts, actor_forwards
    assert found.memory.weights.bytes == (2 + len(found.memory.weights.caches) - 1) * parameters * size  # two at the publisher
    assert found.memory.samples.group == 8 * (5 * 4 * 1536 + 4 + 4 + 1 + 1) + 4 * 1536 + 512
    assert found.memory.samples.capacity == found.admission.permits * found.memory.samples.group
    assert found.memory.samples.capacity <= found.memory.samples.budget
    assert found.memory.samples.shards_free >= 0


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.file)
def test_what_train_refuses_of_a_variant_is_said_and_nothing_else(variant: Variant) -> None:
    refused = "\n".join(explain(load(FOLDER / variant.file)).refused)
    if variant.kind == "cpu":
        assert refused == ""
        return
    for key in (f"resources.trainer.workers = {variant.workers[3]}", "resources.rollout.devices", f"cluster.kind = '{variant.kind}'", "bfloat16"):
        assert key in refused
    assert len(refused.splitlines()) == 4


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.file)
def test_what_no_device_has_run_is_marked_in_the_readme_and_in_the_file(variant: Variant) -> None:
    (line,) = (line for line in README.splitlines() if line.startswith(f"| `{variant.file}`"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    head = (FOLDER / variant.file).read_text().splitlines()[0]
    if variant.kind == "cpu":
        assert cells[-1].startswith("tiny model and files in CI")
        assert "Not run" not in head
    else:
        assert cells[-1] == "not run: no such device at hand"
        assert "Not run: no such device" in head
        assert "-".join(map(str, variant.split)) in line


def test_the_readme_names_every_file_and_every_file_is_a_variant_or_a_part() -> None:
    files = {path.name for path in FOLDER.glob("*.yaml")}
    assert files == {variant.file for variant in VARIANTS} | PARTS
    assert set(re.findall(r"`(\w+\.yaml)`", README)) >= files


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.file)
def test_a_misspelt_key_is_refused_in_every_variant(variant: Variant) -> None:
    with pytest.raises(SettingError, match="did you mean 'slots'"):
        load(FOLDER / variant.file, ["rollout.slot=64"])


def test_a_replica_has_as_many_devices_as_vllm_uses() -> None:
    with pytest.raises(SettingError, match=r"rollout\.options\.tensor_parallel = 2: each of the 13 replicas has 4 devices.*=4"):
        load(FOLDER / "cuda_7b_64.yaml", ["rollout.options.tensor_parallel=2"])
