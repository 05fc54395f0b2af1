"""The documents name only what is there: tests, files, folders, headings, pictures. And whoever starts at the index finds every page."""

from __future__ import annotations

import ast
import itertools
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest
import yaml

from tests.packaging.markdown import DOCS, INDEX, ROOT, Fence, anchors, fences, links, pages

PAGES = pages()
PICTURES = sorted(DOCS.rglob("*.svg"))
TOPS = ("asyncflow", "transfer_queue", "checkpoint_engine", "shared_arena", "recipes", "tests", "docs", "benchmarks", "constraints")
LANGUAGES = ("sh", "text", "yaml", "python", "json")
MOST_PICTURE_BYTES = 20_000


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_test_that_the_table_of_faults_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "faults.md").read_text()))
    there = {name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)}
    assert len(named) > 40
    assert named - there == set()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_path_and_link_on_a_page_exists(page: Path) -> None:
    assert [link.target for link in links(page) if not (page.parent / link.target).exists()] == []
    paths = [path for path in re.findall(r"`([\w./*-]+/[\w./*-]*)`", page.read_text()) if path.split("/")[0] in TOPS]
    assert [path for path in paths if not list(ROOT.glob(path.rstrip("/"))) and not absent_on_purpose(path)] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_anchor_that_a_page_links_to_is_a_heading(page: Path) -> None:
    led = [(link, page.parent / link.target if link.target else page) for link in links(page) if link.anchor]
    assert [f"{link.target}#{link.anchor}" for link, target in led if target.suffix == ".md" and link.anchor not in anchors(target)] == []


def test_every_page_is_reached_from_the_index_of_the_docs() -> None:
    reached, todo = set[Path](), [INDEX]
    while todo:
        page = todo.pop().resolve()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            todo += [page.parent / link.target for link in links(page) if link.target]
    assert [named(page) for page in PAGES if page.resolve() not in reached] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_fence_says_what_it_holds_and_holds_it(page: Path) -> None:
    """`sh` is run by tests/pipeline/test_commands_in_docs.py; output and drawings are `text`."""
    blocks = fences(page)
    assert [f"{block.place}: {block.info!r} is none of {LANGUAGES}" for block in blocks if block.language not in LANGUAGES] == []
    for block in blocks:
        _read(block)


def _read(block: Fence) -> None:
    if block.language == "yaml":
        assert yaml.safe_load(block.body) is not None, block.place
    elif block.language == "python":
        ast.parse(block.body, filename=block.place)
    elif block.language == "json":
        msgspec.json.decode(block.body)


def test_every_picture_is_shown_on_a_page_and_described_there() -> None:
    shown = {(page.parent / link.target).resolve(): link.text for page in PAGES for link in links(page) if link.image}
    assert [named(picture) for picture in PICTURES if not shown.get(picture.resolve())] == []
    assert len(PICTURES) >= 10


@pytest.mark.parametrize("picture", PICTURES, ids=named)
def test_a_picture_is_small_self_contained_and_made_for_light_and_dark(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    assert len(text.encode()) < MOST_PICTURE_BYTES
    assert "prefers-color-scheme: dark" in text
    assert re.findall(r"(?:href|src|url)\s*[=(]\s*[\"']?(?!#|url\(#)[^\"')#]+", text) == []
    tree = ElementTree.fromstring(text)
    width, height = map(float, tree.attrib["viewBox"].split()[2:])
    words = [node for node in tree.iter() if node.tag.endswith("}text")]
    assert words
    assert all(0 < float(node.attrib["x"]) < width and 0 < float(node.attrib["y"]) < height for node in words)


def test_every_message_that_troubleshooting_quotes_is_one_that_the_code_can_say() -> None:
    """Values differ, so what is compared is pairs of neighbouring words: half of a quoted message's, or more, are those of one in the code."""
    said = defaultdict[tuple[str, str], set[int]](set)  # pair → messages that have it
    for number, message in enumerate(messages()):
        for pair in pairs(message):
            said[pair].add(number)
    rows = [line.split(" | ")[0] for line in (DOCS / "troubleshooting.md").read_text().splitlines() if line.startswith("| `")]
    quoted = [phrase for row in rows for phrase in re.findall(r"`([^`]+)`", row) if len(phrase.split()) > 2]
    assert len(quoted) > 50
    assert [phrase for phrase in quoted if _most_alike(pairs(phrase), said) < len(pairs(phrase)) / 2] == []


def _most_alike(quoted: set[tuple[str, str]], said: Mapping[tuple[str, str], set[int]]) -> int:
    """How many of the pairs the message has that has most of them."""
    found = Counter(number for pair in quoted for number in said.get(pair, ()))
    return max(found.values(), default=0)


def messages() -> Iterator[str]:
    """Texts of the code, those in pieces joined, values as an ellipsis; and the lines of the Makefile."""
    yield from (ROOT / "Makefile").read_text().splitlines()
    for package in ("asyncflow", "transfer_queue", "checkpoint_engine", "shared_arena"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    yield "".join(str(part.value) if isinstance(part, ast.Constant) else " … " for part in node.values)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def pairs(text: str) -> set[tuple[str, str]]:
    """Neighbouring words, values left out."""
    words = [word.strip("():;,.'") for word in text.split()]
    return {pair for pair in itertools.pairwise(words) if all(re.fullmatch(r"[A-Za-z_.=×-]+", word) for word in pair)}


def test_the_concepts_have_one_page_and_one_picture_each() -> None:
    concepts = sorted((DOCS / "concepts").glob("*.md"))
    assert len(concepts) >= 10
    assert {page.stem for page in concepts} == {picture.stem for picture in (DOCS / "concepts").glob("*.svg")}


def absent_on_purpose(path: str) -> bool:
    """What the plan says is still to come."""
    return path == "transfer_queue/compat"
