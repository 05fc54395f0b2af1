"""The example of keyed partitions on the page runs as it stands there and says what it shows."""

from __future__ import annotations

import pytest

from tests.packaging.markdown import DOCS, fences


def test_the_example_of_keyed_partitions_prints_what_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = fences(DOCS / "transfer_queue.md")
    (place,) = [number for number, block in enumerate(blocks) if block.language == "python" and "keyed_only=True" in block.body]
    exec(compile(blocks[place].body, "docs/transfer_queue.md", "exec"), {})
    assert capsys.readouterr().out.strip() == blocks[place + 1].body.strip()
