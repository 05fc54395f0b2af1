"""What must hold of a run of the gate, whatever was updated, aborted, killed and added."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from transformers import PreTrainedModel

from asyncflow.data.finish import LENGTH, STOP
from tests.pipeline.gate import BUDGET, OWN, PROMPTS, ROWS, Outcome
from tests.pipeline.gate_replica import REASON


def check_outcomes(outcome: Outcome, stop: int) -> None:
    """200 outcomes, one each; budgets kept; versions per token never decrease."""
    ends = [event.gid for event in outcome.events if event.gid < OWN and event.dst in ("trained", "dropped")]
    assert sorted(ends) == list(range(PROMPTS))
    assert {event.reason for event in outcome.events if event.dst == "dropped"} <= {REASON}
    assert len(outcome.trained) > PROMPTS / 2
    assert len(outcome.trained) < PROMPTS
    for rows in outcome.trained.values():
        assert len(rows) == ROWS
        for row in rows:
            assert 1 <= len(row.tokens) <= BUDGET
            assert len(row.tokens) == len(row.logprobs) == len(row.versions)
            assert row.versions == sorted(row.versions)
            assert row.finish in (STOP, LENGTH)
            assert (row.finish == STOP) == (row.tokens[-1] == stop)
            assert row.finish == STOP or len(row.tokens) == BUDGET


def check_labels(outcome: Outcome) -> None:
    """No token has a version that its replica had not loaded; what was trained is what replicas made, token by token."""
    made: set[tuple[int, int, int, int, int]] = set()  # gid, row, place, token, version
    for notes in outcome.notes.values():
        loaded: list[int] = []
        for note in notes:
            if note.kind == "loaded":
                assert not loaded or note.version > loaded[-1]
                loaded.append(note.version)
            elif note.kind == "made":
                assert note.version in loaded[-2:], "made by what was loaded, or came with the first chunks after the next load"
                made |= {(note.gid, note.row, note.first + at, token, note.version) for at, token in enumerate(note.tokens)}
        assert len(loaded) > 3
    for gid, rows in outcome.trained.items():
        for index, row in enumerate(rows):
            for at, (token, version) in enumerate(zip(row.tokens, row.versions, strict=True)):
                assert (gid, index, at, token, version) in made


def check_passed_over(outcome: Outcome) -> None:
    """Where a load takes longer than an update: the newest is loaded, those between are not."""
    for notes in outcome.notes.values():
        loaded = [note.version for note in notes if note.kind == "loaded"]
        assert loaded[-1] - loaded[0] > len(loaded)


def check_faults(outcome: Outcome) -> None:
    """Everything that was to happen did happen."""
    assert any(event.reason == "producer_died" for event in outcome.events), "the killed replica held nothing"
    counts = Counter(note.kind for notes in outcome.notes.values() for note in notes)
    assert counts["aborted"] > 10, counts
    assert counts["given_up"] > 10, counts
    for name, notes in outcome.notes.items():
        assert any(note.kind == "made" for note in notes), f"{name} made nothing"
    crossed = [row for rows in outcome.trained.values() for row in rows if len(set(row.versions)) > 1]
    assert len(crossed) > 20, "responses that went on under other weights"


def check_log_probs(outcome: Outcome, models: list[PreTrainedModel], atol: float) -> None:
    """Every token's log-probability is that under the weights of its version. Where an update computes keys and values anew, that is `abort`."""
    for rows in outcome.trained.values():
        for row in rows:
            for version in set(row.versions):
                mine = np.array([at for at, found in enumerate(row.versions) if found == version])
                expected = log_probs(models[outcome.models[version]], row.prompt, row.tokens)
                np.testing.assert_allclose(np.array(row.logprobs)[mine], expected[mine], atol=atol)


def log_probs(model: PreTrainedModel, prompt: list[int], tokens: list[int]) -> np.ndarray:
    """transformers' own, of each token."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1].float()
    return logits.log_softmax(-1)[torch.arange(len(tokens)), torch.tensor(tokens)].numpy()


def check_wanderers(outcome: Outcome) -> None:
    """Some trained rows are made of tokens of more than one replica: what one handed back another went on with."""
    makers: dict[tuple[int, int, int, int, int], set[str]] = {}
    for name, notes in outcome.notes.items():
        for note in notes:
            if note.kind == "made":
                for at, token in enumerate(note.tokens):
                    makers.setdefault((note.gid, note.row, note.first + at, token, note.version), set()).add(name)
    count = 0
    for gid, rows in outcome.trained.items():
        for index, row in enumerate(rows):
            keys = [(gid, index, at, token, version) for at, (token, version) in enumerate(zip(row.tokens, row.versions, strict=True))]
            count += not set.intersection(*(makers[key] for key in keys))
    assert count > 0
