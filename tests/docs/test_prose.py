"""Pages are short and so are their sentences. Links lead somewhere. What is generated is what the generator makes."""

from __future__ import annotations

import json
import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from statistics import mean
from types import ModuleType

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

MAX_WORDS, MAX_MEAN = 25, 20


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
    assert len(counts) > len(left_out) or not left_out
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


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """What changes the pages for the site. MkDocs itself is installed by `make docs` alone."""
    files = ModuleType("mkdocs.structure.files")
    files.File = files.Files = object  # type: ignore[attr-defined]
    for module in ("mkdocs", "mkdocs.structure"):
        monkeypatch.setitem(sys.modules, module, ModuleType(module))
    monkeypatch.setitem(sys.modules, files.__name__, files)
    spec = spec_from_file_location("docs_hooks", ROOT / "docs/hooks.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.parametrize("name", [name for name in page_names() if name.startswith("docs/")])
def test_a_link_of_a_built_page_leads_to_a_page_or_to_what_the_site_adds(name: str, hooks: ModuleType) -> None:
    """A page in a folder has one step more to the repository, and `make docs` refuses a link that leaves the site."""
    docs, folder = ROOT / "docs", (ROOT / name).parent
    built = hooks.on_page_markdown(read_page(name))
    paths = {link.partition("#")[0] for link in links_of(built) if "://" not in link and not link.startswith("mailto:")}
    left = [path for path in paths if path and not (folder / path).resolve().is_relative_to(docs)]
    added = [docs / here for _, here in (hooks.LOG, hooks.RESULTS)]
    missing = [
        path
        for path in paths
        if path
        and not (folder / path).exists()
        and not any((folder / path).resolve().is_relative_to(one) for one in added)
    ]
    assert (left, missing) == ([], [])


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
