"""Tokenizers of the kind that Qwen2.5 comes with: byte-level BPE in Qwen2's own class, turns written by its chat template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

from asyncflow.data.chat import ChatRefused, load_tokenizer, prompt_ids, stops_of

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = """{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\\nBe brief.<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
QUESTION = "Natalia sold 48 clips. How many is half of it?"
PROMPT = f"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """vocab.json, merges.txt and tokenizer_config.json as Qwen2.5's folders have them; only the vocabulary is small."""
    folder = tmp_path_factory.mktemp("qwen")
    core = Tokenizer(models.BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator([QUESTION] * 20, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False))
    core.model.save(str(folder))
    size = core.get_vocab_size()
    added = {str(size + place): {"content": text, "special": True} for place, text in enumerate(SPECIAL)}
    config = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None, "unk_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"added_tokens_decoder": added, "chat_template": TEMPLATE}))
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", "eos_token_id": size + 2}))
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    return load_tokenizer(folder)


def test_a_prompt_is_written_up_to_where_the_models_turn_begins(tokenizer: PreTrainedTokenizerFast) -> None:
    assert isinstance(tokenizer, Qwen2Tokenizer)
    (ids,) = prompt_ids(tokenizer, [[{"role": "user", "content": QUESTION}]])
    assert tokenizer.decode(ids) == PROMPT
    start, end = (tokenizer.convert_tokens_to_ids(token) for token in ("<|im_start|>", "<|im_end|>"))
    assert (ids.count(start), ids.count(end)) == (3, 2)  # marks of turns are one token each
    assert len(ids) < len(PROMPT)


def test_several_chats_are_written_as_each_would_be_alone(tokenizer: PreTrainedTokenizerFast) -> None:
    chats = [[{"role": "user", "content": text}] for text in ("a", QUESTION, "")]
    assert prompt_ids(tokenizer, chats) == [prompt_ids(tokenizer, [chat])[0] for chat in chats]


def test_a_system_message_of_ones_own_stands_in_place_of_the_templates(tokenizer: PreTrainedTokenizerFast) -> None:
    (ids,) = prompt_ids(tokenizer, [[{"role": "system", "content": "Count."}, {"role": "user", "content": "1?"}]])
    assert tokenizer.decode(ids).startswith("<|im_start|>system\nCount.<|im_end|>\n<|im_start|>user\n1?")


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('no system message') if messages[0].role == 'system' else 'x' }}", "TemplateError: no system message"),
        ("{{ 'x' if messages[0].role == 'user' else messages[0].content + 1 }}", "TypeError: "),
        ("{{ 'x' if messages[0].role == 'user' else '' }}", "it has no token"),
    ],
)
def test_a_chat_that_the_template_does_not_take_is_told_by_its_place(folder: Path, template: str, words: str) -> None:
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = template
    with pytest.raises(ChatRefused, match=words) as refusal:
        prompt_ids(tokenizer, [[{"role": "user", "content": "1?"}], [{"role": "system", "content": "Count."}]])
    assert refusal.value.place == 1


def test_a_response_ends_with_what_the_configuration_names(folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    assert stops_of(folder, tokenizer) == (tokenizer.convert_tokens_to_ids("<|im_end|>"),)
    assert stops_of(folder / "nowhere", tokenizer) == (tokenizer.eos_token_id,)


def test_a_tokenizer_alone_without_an_end_is_refused(folder: Path) -> None:
    endless = load_tokenizer(folder)
    endless.eos_token = None
    with pytest.raises(ValueError, match=r"rollout\.stop_token_ids is empty and the tokenizer in .*Fix: rollout\.stop_token_ids"):
        stops_of(folder / "nowhere", endless)
