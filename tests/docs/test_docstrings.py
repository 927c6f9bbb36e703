"""Docstrings use the field's words, cite papers by title and arXiv id, and their sentences are short."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.docs.pages import ROOT, num_words

MAX_WORDS = 40
BANNED = ("shed", "sheds", "ledger", "ledgers", "outlook", "foresight", "foreseen", "work ahead")
_BANNED = re.compile(rf"\b(?:{'|'.join(map(re.escape, BANNED))})\b", re.IGNORECASE)
# "002, Figure 3", "000 section 4", "of 001". Numbers such as 5,000, 0.001 and arXiv ids are none.
_SEED = re.compile(r"(?<![\w.,-])00\d(?= section| Figure|,(?!\d))|\bof 00\d\b(?![.,]?\d)", re.IGNORECASE)
_ENDS = re.compile(r"(?<=[.!?])\s+")


def files() -> list[Path]:
    """The product's files. Benchmarks, which stand in the package as a link, are none."""
    found = [*(ROOT / "acmserve").rglob("*.py"), *(ROOT / "kernels/ops").rglob("*.py")]
    return sorted({path.resolve() for path in found if not path.is_relative_to(ROOT / "acmserve/bench")})


def docstrings(code: str) -> Iterator[str]:
    """Every docstring on one line. A string behind a constant is one, too."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield " ".join(node.value.value.split())


def sentences(text: str) -> list[str]:
    """The sentences of paragraphs and items of lists. Pictures, which are indented, are left out."""
    prose = []
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        is_list = lines[0].startswith(("- ", "1. "))
        prose.append(" ".join(line.strip() for line in lines if is_list or not line.startswith(" ")))
    items = [item for block in prose for item in re.split(r"(?:^|\s)(?:-|\d\.) (?=[A-Z`\"*])", block)]
    return [sentence for item in items for sentence in _ENDS.split(item) if sentence]


def banned_words(code: str) -> list[str]:
    return [found[0] for text in docstrings(code) for found in _BANNED.finditer(text)]


def seed_citations(code: str) -> list[str]:
    return [found[0] for text in docstrings(code) for found in _SEED.finditer(text)]


def long_sentences(code: str) -> list[str]:
    """Those of the module's own docstring."""
    text = ast.get_docstring(ast.parse(code)) or ""
    return [sentence for sentence in sentences(text) if num_words(sentence) > MAX_WORDS]


@pytest.mark.parametrize("check", [banned_words, seed_citations, long_sentences])
def test_docstrings_keep_the_house_rules(check: Callable[[str], list[str]]) -> None:
    found = {str(path.relative_to(ROOT)): check(path.read_text(encoding="utf-8")) for path in files()}
    assert len(found) > 250
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


def test_a_banned_word_is_found_wherever_a_docstring_stands() -> None:
    code = '''"""A Ledger."""

LIMIT = 3
"""Why an outlook ends."""

class Store:
    """Equal sheds."""

    async def plan(self) -> None:
        """Begin to work
        ahead."""
'''
    assert banned_words(code) == ["Ledger", "outlook", "sheds", "work ahead"]
    assert banned_words('"""Work ahead, foreseen by foresight."""') == ["Work ahead", "foreseen", "foresight"]


def test_a_word_that_holds_a_banned_one_is_none() -> None:
    assert banned_words('"""A finished, established, unforeseen shedding; a write-ahead log."""\nledger = 1') == []


@pytest.mark.parametrize(
    "text",
    [
        "Algorithm 1 of 002.",
        "The tools of 000",
        "See 003 section 3.",
        "In 001, they are kept.",
        "As 000, Figure 10, has it.",
        "In 000\nFigure 10.",
    ],
)
def test_a_citation_by_number_is_found(text: str) -> None:
    assert len(seed_citations(f'"""{text}"""')) == 1


@pytest.mark.parametrize(
    "text",
    [
        "An integer of 5,000 digits, and 2,000 tokens, of 1,001.",
        "Worth 0.0001 nats, a width of 0.001, or 1.000, as 10002, says.",
        "Sculptor (arXiv 2508.04664), section 3.2, and PEEK (arXiv 2605.19932), Figure 2.",
        'Ids such as "rr-00003" and "cr-00001", of 100 items.',
    ],
)
def test_another_number_is_no_citation(text: str) -> None:
    assert seed_citations(f'"""{text}"""') == []


def test_a_long_sentence_is_found() -> None:
    words = "word " * MAX_WORDS
    assert long_sentences(f'"""Short. {words}end. Short."""') == [f"{words}end."]
    assert long_sentences(f'"""Short. {words[:-1]}. Short."""') == []
    assert long_sentences(f'"""Short.\n\n- Item {words}\n  end.\n"""') != []


def test_a_picture_is_no_sentence() -> None:
    picture = "    begin --> end   " + "step " * MAX_WORDS
    assert long_sentences(f'"""Short.\n\n{picture}\n\nShort.\n"""') == []
    assert long_sentences(f'"""Short:\n{picture}\nand so on.\n"""') == []
