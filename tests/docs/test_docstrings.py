"""Docstrings use the field's words, and cite papers by title and arXiv id. Their sentences are short.

No docstring and no comment has a semicolon between sentences, or names a file that is gone. These rules, and that of
short sentences, hold for tests and benchmarks, too.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from inspect import cleandoc
from pathlib import Path

import pytest

from tests.support.docs.pages import ROOT, num_words
from tests.support.docs.syntax import statements

MAX_WORDS = 25
BANNED = ("shed", "sheds", "ledger", "ledgers", "outlook", "foresight", "foreseen", "work ahead")
_BANNED = re.compile(rf"\b(?:{'|'.join(map(re.escape, BANNED))})\b", re.IGNORECASE)
# "002, Figure 3", "000 section 4", "of 001". Numbers such as 5,000, 0.001 and arXiv ids are none.
_SEED = re.compile(r"(?<![\w.,-])00\d(?= section| Figure|,(?!\d))|\bof 00\d\b(?![.,]?\d)", re.IGNORECASE)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_ENDS = re.compile(r"(?<=[.!?])\s+")
_COLUMNS = re.compile(r"\S {3,}\S")
_QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"")
_FILE = re.compile(r"`((?:[\w-]+/)*(?:test_|bench_)?[a-z_]+\.(?:py|cpp|hpp|md))`")
NOT_OURS = frozenset({"offloading/worker.py", "tool_category_distribution/README.md", "page.md"})
"""Files of vLLM, of a cited study, and one that a command writes."""


def files() -> list[Path]:
    """The product's files. Benchmarks, which stand in the package as a link, are none."""
    found = [*(ROOT / "acmserve").rglob("*.py"), *(ROOT / "kernels/ops").rglob("*.py")]
    return sorted({path.resolve() for path in found if not path.is_relative_to(ROOT / "acmserve/bench")})


@lru_cache(maxsize=1)
def statements_of(code: str) -> list[ast.AST]:
    """The checks of one file share them."""
    return statements(ast.parse(code))


def texts(code: str) -> Iterator[str]:
    """Every docstring as it stands. A string behind a constant is one, too."""
    for node in statements_of(code):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def docstrings(code: str) -> Iterator[str]:
    """Every docstring on one line."""
    return (" ".join(text.split()) for text in texts(code))


def every_file() -> list[Path]:
    return sorted({*files(), *(path for name in ("benchmarks", "tests") for path in (ROOT / name).rglob("*.py"))})


def prose(code: str) -> Iterator[str]:
    """Docstrings without their pictures, and comments, each without what it quotes."""
    for text in map(cleandoc, texts(code)):
        yield _QUOTED.sub("", "\n".join(line for line in text.splitlines() if not line.startswith("    ")))
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            yield _QUOTED.sub("", token.string)


def semicolons(code: str) -> list[str]:
    if ";" not in code:
        return []
    return [text for text in prose(code) if re.search(r";(?:\s|$)", text)]


def gone_files(code: str) -> list[str]:
    """Files that a docstring names by their path or its end, and that are nowhere."""
    named = {name for text in docstrings(code) for name in _FILE.findall(text)} - NOT_OURS
    return sorted(name for name in named if name not in all_ends())


@cache
def all_ends() -> frozenset[str]:
    """The paths of all files below the folders that hold code, words or tests, and what each of these ends with."""
    roots = ("acmserve", "benchmarks", "csrc", "docs", "kernels", "tests")
    paths = [path.relative_to(ROOT).parts for root in roots for path in (ROOT / root).rglob("*.*")]
    return frozenset("/".join(parts[at:]) for parts in paths for at in range(len(parts)))


def sentences(text: str) -> list[str]:
    """The sentences of paragraphs and items of lists. Pictures, which are indented, and rows of tables are left out."""
    written = []
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        is_list = lines[0].startswith(("- ", "1. "))
        held = (line for line in lines if is_list or not (line.startswith(" ") or _COLUMNS.search(line)))
        written.append(" ".join(line.strip() for line in held))
    items = [item for block in written for item in re.split(r"(?:^|\s)(?:-|\d\.) (?=[A-Z`\"*])", block)]
    return [sentence for item in items for sentence in _ENDS.split(item) if sentence]


def banned_words(code: str) -> list[str]:
    return [found[0] for text in docstrings(code) for found in _BANNED.finditer(text)]


def seed_citations(code: str) -> list[str]:
    return [found[0] for text in docstrings(code) for found in _SEED.finditer(text)]


def long_sentences(code: str) -> list[str]:
    """Those of modules, classes and functions."""
    found = [ast.get_docstring(node) for node in statements_of(code) if isinstance(node, _DOCUMENTED)]
    return [one for text in found if text for one in sentences(text) if num_words(one) > MAX_WORDS]


@pytest.mark.parametrize("check", [banned_words, seed_citations])
def test_docstrings_keep_the_house_rules(check: Callable[[str], list[str]]) -> None:
    found = {str(path.relative_to(ROOT)): check(path.read_text(encoding="utf-8")) for path in files()}
    assert len(found) > 250
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


def wrong_prose(code: str) -> list[str]:
    """What the rules that hold for every file find."""
    return [*semicolons(code), *gone_files(code), *long_sentences(code)]


def test_prose_of_every_file_keeps_some() -> None:
    found = {str(path.relative_to(ROOT)): wrong_prose(path.read_text(encoding="utf-8")) for path in every_file()}
    assert len(found) > 1500
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


def test_a_semicolon_between_sentences_is_found() -> None:
    assert len(semicolons('"""It moves; it is counted."""\nn = 1  # of tokens; all of them\n')) == 2
    assert semicolons('"""It reads `a; b`, or "c; d".\n\n    a; b --> c\n\nAnd so on.\n"""\nn = "a; b"\n') == []


def test_a_file_that_is_gone_is_found() -> None:
    assert gone_files('"""As `docs/test_docstrings.py` and `test_docstrings.py`."""') == []
    assert gone_files('"""As `pages/test_docstrings.py`, `docstrings.py` and `gone.py`."""') == [
        *("docstrings.py", "gone.py", "pages/test_docstrings.py"),
    ]


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
    assert long_sentences(f'"""Short.\n\n{picture.strip()}\n{picture.strip()}\n"""') == []
