"""Pages are short and so are their sentences; links lead somewhere; what is generated is what the generator makes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import mean

import pytest

from acmserve.bench.report.edit_picture import RESULT, draw
from acmserve.bench.report.page import SECTIONS
from acmserve.bench.report.page import page as benchmark_page
from tests.support.docs.pages import (
    GENERATED,
    ROOT,
    has_history,
    links_of,
    num_words,
    page_names,
    read_page,
    sentences_of,
)

MAX_WORDS, MAX_MEAN = 35, 20


def test_the_readme_is_one_screen() -> None:
    lines = read_page("README.md").splitlines()
    assert len(lines) <= 150
    assert sum(line.startswith("|") for line in lines) <= 16
    assert sum(line.startswith("![") for line in lines) == 1


@pytest.mark.parametrize("name", page_names())
def test_sentences_are_short(name: str) -> None:
    counts = {sentence: num_words(sentence) for sentence in sentences_of(read_page(name))}
    assert {sentence: number for sentence, number in counts.items() if number > MAX_WORDS} == {}
    assert mean(counts.values()) < MAX_MEAN


def test_sentences_of_sections_that_have_no_results_yet_are_short_too() -> None:
    """The page of benchmarks leaves such a section out until somebody measures."""
    left_out = [one for one in SECTIONS if f"### {one.title}\n" not in read_page(GENERATED)]
    told = [text for one in left_out for text in (one.question, one.gate, one.answer, *one.notes)]
    told += [head for one in left_out for part in one.tables for head in (part.caption, *part.heads)]
    texts = [text for text in told if isinstance(text, str)]
    counts = {sentence: num_words(sentence) for text in texts for sentence in sentences_of(text)}
    assert len(counts) > len(left_out)
    assert {sentence: number for sentence, number in counts.items() if number > MAX_WORDS} == {}


def test_a_long_sentence_is_found() -> None:
    page = "A short one. " + "word " * 40 + "end.\n\n| a | " + "cell " * 40 + "|\n\n```\n" + "code " * 50 + "\n```\n"
    assert sorted(num_words(sentence) for sentence in sentences_of(page))[-2:] == [40, 41]
    for begin in ("## A heading\n", "1) an item\n2) ", "+ an item\n+ ", "> "):
        assert max(num_words(sentence) for sentence in sentences_of(begin + "word " * 36)) == 36, begin
    assert [num_words(sentence) for sentence in sentences_of("**How long is it?** " + "word " * 36 + "end.")] == [4, 37]
    items = "It is shown:\n\n- " + "word " * 20 + "when,\n- " + "word " * 20 + "end.\n- Another one.\n"
    assert [num_words(sentence) for sentence in sentences_of(items)] == [3, 42, 2]


@pytest.mark.parametrize("name", page_names())
def test_links_lead_to_files_and_headings(name: str) -> None:
    dead = [link for link in links_of(read_page(name)) if not _leads_somewhere(ROOT / name, link)]
    assert dead == []


@pytest.mark.parametrize("name", page_names())
def test_files_that_a_page_names_are_there(name: str) -> None:
    """In full, or from `acmserve/` on. A name in capitals stands for one of the reader's own."""
    named = set(re.findall(r"`((?:[\w.-]+/)+[\w-]+\.(?:py|hpp|sh|json))`", read_page(name)))
    assert [path for path in named if not _is_there(path) and not Path(path).stem.isupper()] == []


def _is_there(path: str) -> bool:
    return any((folder / path).exists() for folder in (ROOT, ROOT / "acmserve"))


def test_a_file_that_is_gone_is_found() -> None:
    assert _is_there("plan/match.py")
    assert not _is_there("plan/matcher.py")


def _leads_somewhere(page: Path, link: str) -> bool:
    if re.match(r"[a-z]+://", link):
        return True
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not anchor or anchor in _anchors(target))


def _anchors(page: Path) -> set[str]:
    """Ids of headings, as GitHub and MkDocs both make them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.replace("`", "").lower()).replace(" ", "-") for head in heads}


def test_dead_links_are_found() -> None:
    readme = ROOT / "README.md"
    assert not _leads_somewhere(readme, "docs/nowhere.md")
    assert not _leads_somewhere(readme, "docs/fidelity.md#nowhere")


@pytest.mark.skipif(not has_history(), reason="the history of git is not here, or not whole")
def test_the_page_of_benchmarks_is_what_the_results_say() -> None:
    """`acmserve bench report docs/benchmarks.md` makes it anew."""
    assert read_page(GENERATED) == benchmark_page(SECTIONS, ROOT / "benchmarks/results")


def test_the_picture_is_what_the_results_say() -> None:
    """`python -m acmserve.bench.report.edit_picture docs/edit.svg` makes it anew."""
    assert read_page("docs/edit.svg") == draw(json.loads(RESULT.read_text(encoding="utf-8")))
