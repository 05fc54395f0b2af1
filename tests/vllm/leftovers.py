"""What a vLLM that has ended may have left on the machine: files by which its processes meet and share memory, and processes themselves."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import psutil

from asyncflow.engines.rollout.vllm.traces import FOLDER

UUID = 36  # characters of a socket's name where nobody gave vLLM a folder for them
BEGINS = ("vllm_dist_", "psm_", FOLDER)


def traces() -> set[str]:
    """Names of such files."""
    names = {name for folder in ("/dev/shm", tempfile.gettempdir()) for name in os.listdir(folder) if name.startswith(BEGINS)}
    return names | {path.name for path in Path(tempfile.gettempdir()).iterdir() if len(path.name) == UUID and path.is_socket()}


def marked(variable: str, value: str) -> list[psutil.Process]:
    """Processes that were started, by whomever, with this in their environment."""
    return [process for process in psutil.process_iter() if _variable(process, variable) == value]


def _variable(process: psutil.Process, name: str) -> str | None:
    try:
        return process.environ().get(name)
    except psutil.Error:  # it is gone, or somebody else's
        return None
