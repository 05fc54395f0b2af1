"""The pages of the project and what stands on them: headings, links, images, fences. Enough of Markdown for our own pages, no more."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
INDEX = DOCS / "README.md"

_FENCE = re.compile(r"^```(.*)$")
_HEADING = re.compile(r"^#{1,6} +(.*)$", re.MULTILINE)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def pages() -> list[Path]:
    """README, everything in docs, the pages of recipes and benchmarks."""
    return sorted([ROOT / "README.md", *DOCS.rglob("*.md"), *(ROOT / "recipes").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")])


@dataclass(frozen=True)
class Fence:
    """A code block. `info` is what follows the opening backticks: "sh", "text checked", …"""

    page: Path
    line: int  # of the opening backticks, 1-based
    info: str
    body: str

    @property
    def language(self) -> str:
        return self.info.partition(" ")[0]

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def fences(page: Path) -> list[Fence]:
    """In order. Raises ValueError for one that is not closed."""
    found: list[Fence] = []
    opened: tuple[int, str] | None = None
    body: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        fence = _FENCE.match(line)
        if fence is None:
            body.append(line)
        elif opened is None:
            opened, body = (number, fence[1].strip()), []
        else:
            found.append(Fence(page, opened[0], opened[1], "\n".join(body)))
            opened = None
    if opened is not None:
        raise ValueError(f"{page}:{opened[0]}: the fence is not closed")
    return found


def prose(page: Path) -> str:
    """The page without its code blocks, and without code in a line."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "``", text)


@dataclass(frozen=True)
class Link:
    image: bool
    text: str
    target: str  # path without the anchor; "" for a place on the same page
    anchor: str  # "" for none


def links(page: Path) -> list[Link]:
    """Those that lead to a file or a place of the project."""
    found = []
    for image, text, target in _LINK.findall(prose(page)):
        if "://" not in target and not target.startswith("mailto:"):
            path, _, anchor = target.partition("#")
            found.append(Link(bool(image), text, path, anchor))
    return found


def anchors(page: Path) -> set[str]:
    """Names that the headings of a page have on GitHub: lower case, spaces as hyphens, punctuation gone, a number for what comes twice."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    found: set[str] = set()
    for heading in _HEADING.findall(text):
        name = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)).strip().lower().replace(" ", "-")
        unique, number = name, 0
        while unique in found:
            number += 1
            unique = f"{name}-{number}"
        found.add(unique)
    return found
