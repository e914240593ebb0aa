"""What the tests of the documentation read out of Markdown: fenced blocks, commands, links.

Knows: this repository's pages. Does not know: what a command or a link should be.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from docs.tables import fill

__all__ = ["PAGES", "ROOT", "anchors", "blocks", "commands", "links", "put_between"]

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))

_FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A comment after a command begins with two spaces or more, so that a `#` inside a word stays.
_COMMENT: Final = re.compile(r"(?:^|\s{2,})#.*$", re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of a language; "" are those that name none."""
    return [text for found, text in _FENCE.findall(page.read_text()) if found == language]


def commands(page: Path) -> list[str]:
    """Return the commands of the page's sh blocks: continued lines joined, comments and extra spaces removed."""
    text = "\n".join(blocks(page, "sh")).replace("\\\n", " ")
    lines = (" ".join(line.split()) for line in _COMMENT.sub("", text).splitlines())
    return [line for line in lines if line]


def links(page: Path) -> list[str]:
    """Return the targets of the page's links and pictures, without those in code."""
    return re.findall(r"\]\(([^)\s]+)\)", _FENCE.sub("", page.read_text()))


def anchors(page: Path) -> set[str]:
    """Return the names by which the page's headings can be linked to, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def put_between(page: Path, mark: str, text: str) -> None:
    """Put text between the marks `<!-- mark -->` and `<!-- /mark -->` of a page, at its end if it has none."""
    begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    old = page.read_text() if page.exists() else ""
    if begin not in old:
        old += f"\n{begin}\n{end}\n"
    page.write_text(fill(old, mark, f"{text.rstrip()}\n"))
