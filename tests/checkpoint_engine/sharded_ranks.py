"""Ranks of a trainer for the tests: forked processes that meet in gloo, each returning what it found; and the small models they shard.

transformers and torch._dynamo (which the first DTensor imports) take seconds: they are imported here once, not in every forked rank.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

FORK = multiprocessing.get_context("fork")
DIED = "died"


def run_ranks(world: int, target: Callable[..., Any], *arguments: Any, deadline_s: float = 60.0) -> list[Any]:
    """What `target(rank, *arguments)` returns on each rank; DIED for one whose process is gone. Nobody ends before all have answered. Fails the
    test with the traceback of a rank that raised."""
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(world):
            ours, theirs = FORK.Pipe()
            process = FORK.Process(target=_rank, args=(rank, world, str(Path(folder) / "meeting"), theirs, target, arguments))
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        try:
            answers = [_answer(pipe, deadline_s) for pipe in pipes]
        finally:
            for pipe in pipes:
                with contextlib.suppress(OSError):  # that rank died
                    pipe.send("end")
            for process in processes:
                process.join(5)
                process.kill()
                process.join()
    failed = [text for kind, text in answers if kind == "raised"]
    assert not failed, "\n".join(failed)
    return [value for _, value in answers]


def _answer(pipe: Connection, deadline_s: float) -> tuple[str, Any]:
    if not pipe.poll(deadline_s):
        return "raised", f"a rank did not answer within {deadline_s} s"
    try:
        kind, value = pipe.recv()
    except EOFError:
        return DIED, DIED
    return kind, value


def _rank(rank: int, world: int, meeting: str, pipe: Connection, target: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world, timeout=timedelta(seconds=30))
        pipe.send(("returned", target(rank, *arguments)))
    except BaseException:
        pipe.send(("raised", f"rank {rank}: {traceback.format_exc()}"))
    with contextlib.suppress(EOFError):
        pipe.recv()
    os._exit(0)  # gloo's threads may wait for a rank that is gone


def tiny_qwen(tied: bool = True) -> torch.nn.Module:
    """The same on every rank. A vocabulary of 101 is uneven over 2 and 4 ranks; biases and norms have 24, 12 and 6 elements."""
    torch.manual_seed(7)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=101, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=64, tie_word_embeddings=tied,
        )
    )  # fmt: skip


def tiny_moe() -> torch.nn.Module:
    torch.manual_seed(8)
    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=101, hidden_size=16, intermediate_size=24, moe_intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, head_dim=8, num_experts=6, num_experts_per_tok=2, max_position_embeddings=64, tie_word_embeddings=False,
        )
    )  # fmt: skip
