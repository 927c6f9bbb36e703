"""The pages that a reader sees, taken apart: prose, tables, links and code blocks. Text in, text out."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
GENERATED, LEDGER = "docs/benchmarks.md", "docs/ledger.md"
FIRST_PAGES = ("README.md", "docs/quickstart.md", "docs/guides/training.md")
"""What a new user reads and runs on the bundled model, and what no script can say: answers that differ."""
FLEET_PAGES = ("docs/guides/scale.md",)
"""What starts servers of its own: `make replicas` runs it."""
_COMMENT = re.compile(r"<!--(.*?)-->", re.DOTALL)
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
_NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\s*\Z", re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\(([^)\s]+)\)")
_CODE = re.compile(r"`[^`\n]+`")
_ENDS = re.compile(r"(?<=[.!?])(?:\*\*)?\s+")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block. `not_run` is the reason that the page gives, "" for a block that is run."""

    language: str
    code: str
    line: int
    not_run: str = ""


@cache
def has_history() -> bool:
    """Whether all of git's history is here, by which the age of results is told."""
    asked = ["git", "-C", str(ROOT), "rev-parse", "--is-shallow-repository"]
    try:
        return subprocess.run(asked, check=False, capture_output=True, text=True).stdout.strip() == "false"
    except OSError:
        return False


def page_names() -> list[str]:
    """README, changelog, security and all pages below docs, as paths from the root."""
    pages = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    return ["README.md", "CHANGELOG.md", "SECURITY.md", *pages]


def read_page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks_of(page: str) -> Iterator[Block]:
    """Fenced blocks in order. A comment right in front of one says that it is not run, and why."""
    for found in _FENCE.finditer(page):
        reason = _NOT_RUN.search(page[: found.start()])
        line = page.count("\n", 0, found.start()) + 1
        yield Block(found[1], found[2], line, reason[1] if reason else "")


def links_of(page: str) -> list[str]:
    """Targets of links and pictures."""
    return [found[2] for found in _LINK.finditer(_FENCE.sub("", page))]


def text_of(page: str) -> str:
    """What a reader reads: without code blocks, comments and the targets of links."""
    return _LINK.sub(r"\1", _COMMENT.sub("", _FENCE.sub("", page)))


def sentences_of(page: str) -> Iterator[str]:
    """Sentences of paragraphs, of items of lists and of cells. A piece of inline code counts as one word.

    A heading is none. It ends with its line, whatever stands below it. An item that ends with a comma goes on in the
    next one.
    """
    text = _CODE.sub("code", text_of(page))
    text = re.sub(r"^#+ .*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r",\s*\n\s*(?:[-*+]|\d+[.)]) ", ", ", text)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+[.)]) )|\n(?=\|)", text):
        first = paragraph.lstrip()
        cells = first.strip("|").split("|") if first.startswith("|") else [first]
        for cell in cells:
            line = re.sub(r"\s+", " ", re.sub(r"^\s*(?:[-*+>]|\d+[.)])\s+", "", cell)).strip()
            yield from (part for part in _ENDS.split(line) if re.search(r"\w{2}", part))


def num_words(sentence: str) -> int:
    return len(re.findall(r"[^\s]*\w[^\s]*", sentence))


def prose_of(page: str) -> str:
    """The text without inline code, in which figures are looked for."""
    return _CODE.sub("``", text_of(page))
