"""The run's task out of verl's dataset: prompts as verl's dataset class reads them and its tokenizer writes them, scores by its reward loop."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from asyncflow.data.order import EndlessOrder
from asyncflow.data.parquet import DataError
from asyncflow.data.task import Example
from asyncflow.rewards.row_clock import uncounted
from recipes.verl.conf import as_conf

KEPT = ("data_source", "reward_model", "extra_info", "raw_prompt")  # of a row: what verl's reward managers read

LOAD_S = 120.0  # for verl's reward loop, on a busy machine too


class VerlTask:
    """Implements what a run asks of `asyncflow.data.task.Task`. Everything is a function of (settings, position)."""

    def __init__(self, seed: int, verl: Mapping[str, Any]) -> None:
        self._conf, self._seed = as_conf(verl), seed
        self._of_thread = threading.local()

    @functools.cached_property
    def tokenizer(self) -> Any:
        from verl.utils import hf_tokenizer

        model = self._conf.actor_rollout_ref.model
        return hf_tokenizer(model.tokenizer_path or model.path, trust_remote_code=self._conf.data.trust_remote_code)

    def prompt(self, gid: int) -> tuple[list[int], bytes]:
        """(prompt token ids, the row for the reward loop). Batches span epochs; with `data.shuffle` each has an order of its own."""
        row = self._order(gid) if self._conf.data.shuffle else gid % len(self._training)
        found = self._example(self._training, row, "train")
        return found.prompt_ids, found.item

    def held_out(self, count: int) -> list[Example]:
        """The first rows of `data.val_files`. Raises DataError where there are fewer."""
        if len(self._validation) < count:
            rule = f"{self._conf.data.val_files} holds {len(self._validation)} rows that fit; an evaluation of so many cannot be made"
            raise DataError(f"evaluation.items = {count}: {rule}. Fix: ++asyncflow.evaluation.items={len(self._validation)}")
        return [self._example(self._validation, row, "val") for row in range(count)]

    def score(self, item: bytes, response_ids: Sequence[int]) -> float:
        """By verl's reward loop. Each thread has one of its own: a loop in which a row hangs takes no other."""
        scorer = getattr(self._of_thread, "scorer", None)
        if scorer is None:
            from recipes.verl.reward import Scorer

            with uncounted("making verl's reward loop", LOAD_S):
                scorer = self._of_thread.scorer = Scorer(self._conf)
        score = scorer.score([item], [response_ids])[0]
        assert score is not None, "no deadline was given here"
        return float(score)

    @functools.cached_property
    def _training(self) -> Any:
        found = self._dataset(self._conf.data.train_files, True, self._conf.data.train_max_samples)
        if len(found) == 0:
            rule = "no row is left to train on once verl has read and filtered them; there would be nothing to ask"
            raise DataError(f"data.train_files = {self._conf.data.train_files}: {rule}. Fix: other files, or a larger data.max_prompt_length")
        return found

    @functools.cached_property
    def _validation(self) -> Any:
        return self._dataset(self._conf.data.val_files, False, self._conf.data.val_max_samples)

    def _dataset(self, files: Any, training: bool, most: int) -> Any:
        from verl.trainer.ppo.utils import create_rl_dataset

        return create_rl_dataset(files, self._conf.data, self.tokenizer, None, is_train=training, max_samples=most)

    @functools.cached_property
    def _order(self) -> EndlessOrder:
        return EndlessOrder(len(self._training), self._seed)

    @functools.cached_property
    def _builder(self) -> Any:
        """What verl's agent loops make a prompt's tokens with."""
        from transformers import AutoConfig
        from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

        model = self._conf.actor_rollout_ref.model
        kind = AutoConfig.from_pretrained(model.path, trust_remote_code=self._conf.data.trust_remote_code).model_type
        return create_continuous_token_builder(
            self.tokenizer, hf_model_type=kind, chat_template_kwargs=dict(self._conf.data.get("apply_chat_template_kwargs") or {})
        )

    def _example(self, dataset: Any, row: int, split: str) -> Example:
        record = dataset[row]
        messages = list(record["raw_prompt"])
        ids = list(self._builder.build_initial_tokens(messages))
        width = self._conf.data.max_prompt_length
        if not 1 <= len(ids) <= width:
            rule = f"it has {len(ids)} tokens where data.max_prompt_length = {width}; no prompt is cut"
            raise DataError(f"data.{split}_files, row {row}: {rule}. Fix: data.filter_overlong_prompts=true, or data.max_prompt_length={len(ids)}")
        item = msgspec.json.encode({key: record[key] for key in KEPT if key in record}, enc_hook=_plain)
        return Example(str(messages), ids, item, answer_ids=[])


def _plain(value: Any) -> Any:
    """numpy's numbers and arrays, which datasets may hold."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise DataError(f"a row holds {type(value).__name__}, which cannot travel to the reward loop as JSON. Fix: remove it from {', '.join(KEPT)}")
