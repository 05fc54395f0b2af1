"""The prompts of an emulated run: as long as the cost table says, and nothing else about them matters."""

from __future__ import annotations


class EmulatedPrompts:
    """A `workers.source.PromptSource`."""

    def __init__(self, tokens: int, seed: int) -> None:
        self._tokens, self._seed = tokens, seed

    def prompt(self, gid: int) -> tuple[list[int], bytes]:
        return [1 + (gid + self._seed) % 1000] * self._tokens, b""
