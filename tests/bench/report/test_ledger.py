"""The ledger: what is stale is found in the history of git, and a page that shows a stale figure says so."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.provenance.code_state import CURRENT, OLDER, UNKNOWN, find_state
from acmserve.bench.provenance.measured import ENGINE, REPEATED_BY
from acmserve.bench.report.ledger import (
    MARKS,
    REPEATED,
    LedgerRow,
    find_size,
    ledger_page,
    main,
    make_row,
    mark_of,
    one_commit,
    read_ledger,
    repeats_of,
)
from acmserve.bench.report.sources import ResultSource, find_sources, has_exact
from acmserve.errors import AcmError
from tests.support.docs.figures import FIGURES, Figure, checked_pages, read_result
from tests.support.docs.pages import GENERATED, ROOT, has_history, read_page
from tests.support.recorded.ledger import committed_ledger

RESULTS = ROOT / "benchmarks/results"
NEEDS_HISTORY = pytest.mark.skipif(not has_history(), reason="the history of git is not here, or not whole")
HISTORIC = ("CHANGELOG.md",)
"""It tells what was measured when a version came out."""


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.com")
    done = subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(folder: Path, file: str, text: str) -> str:
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(text, encoding="utf-8")
    git(folder, "add", file)
    git(folder, "commit", "--quiet", "--message", text)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def checkout(tmp_path: Path) -> tuple[Path, str]:
    """A repository with a product and something else, and its commit."""
    git(tmp_path, "init", "--quiet")
    commit(tmp_path, "product/plan.py", "one")
    return tmp_path, commit(tmp_path, "docs/page.md", "a page")


def test_a_result_is_stale_once_what_it_measures_changed(checkout: tuple[Path, str]) -> None:
    root, measured = checkout
    paths = ("product",)
    assert find_state(measured, [], paths, root) == CURRENT
    commit(root, "docs/page.md", "another page")
    assert find_state(measured, [], paths, root) == CURRENT
    changed = commit(root, "product/plan.py", "two")
    assert find_state(measured, [], paths, root) == OLDER
    assert find_state(changed, [], paths, root) == CURRENT
    commit(root, "product/plan.py", "one")
    assert find_state(measured, [], paths, root) == CURRENT, "taken back"
    (root / "product/plan.py").write_text("three")
    assert find_state(measured, [], paths, root) == OLDER, "not committed yet"


@pytest.mark.parametrize(
    ("now", "state"),
    [
        ('"""Plans.\n\nPurely so.\n"""\nLEAST = 3  # tokens\n"""In tokens."""\n', CURRENT),
        ('"""Plans; purely."""\nLEAST = 4\n', OLDER),
        ('"""Plans; purely."""\nLEAST = "a text"\n', OLDER),
        ("LEAST = = 3\n", OLDER),
    ],
)
def test_words_alone_make_no_result_stale(now: str, state: str, checkout: tuple[Path, str]) -> None:
    root, _ = checkout
    measured = commit(root, "product/plan.py", '"""Plans; purely."""\nLEAST = 3\n')
    (root / "product/plan.py").write_text(now)
    assert find_state(measured, [], ("product",), root) == state
    measured = commit(root, "product/move.cpp", "// Moves; purely.\n")
    (root / "product/move.cpp").write_text("// Moves. Purely.\n")
    assert find_state(measured, [], ("product",), root) == OLDER, "another language is compared as it is"
    (root / "product/move.cpp").unlink()
    assert find_state(measured, [], ("product",), root) == OLDER


@pytest.mark.parametrize(
    ("changed", "state"),
    [
        (["docs/page.md", "results.json"], CURRENT),
        (["product/plan.py"], "measured on a modified tree"),
        (["product/"], "measured on a modified tree"),
        (["products/"], CURRENT),
        (None, "measured on a modified tree"),
    ],
)
def test_a_modified_tree_counts_where_a_measured_path_was_modified(
    checkout: tuple[Path, str], changed: list[str] | None, state: str
) -> None:
    root, measured = checkout
    assert find_state(f"{measured}+", changed, ("product",), root) == state


@pytest.mark.parametrize(("measured", "state"), [(None, f"commit {UNKNOWN}"), ("f" * 40, "commit not in this history")])
def test_what_nobody_can_tell_is_stale(checkout: tuple[Path, str], measured: str | None, state: str) -> None:
    assert find_state(measured, [], ("product",), checkout[0]) == state


def row_of(root: Path, report: dict[str, Any]) -> LedgerRow:
    return make_row(ResultSource("toy", "acmserve bench toy", ("product",)), report, root)


def test_a_row_says_what_its_file_says_and_invents_nothing(checkout: tuple[Path, str]) -> None:
    root, measured = checkout
    machine = {
        "cpu": "a cpu",
        "cores": 1,
        "load": 0.5,
        "commit": measured,
        "date": "2026-01-02T03:04:05",
        "changed": [],
    }
    use = {"seconds": 425.0, "own_share": 0.9, "other_share": 0.4, "stolen_share": 0.0, "answers": 12}
    row = row_of(root, {"machine": machine, "use": use})
    assert row.cells()[1:] == [
        "2026-01-02",
        measured[:8],
        "a cpu, 1 core",
        "0.5, busy",
        "12 answers",
        "7:05 min",
        CURRENT,
    ]
    assert mark_of([row]) == ""
    bare = row_of(root, {})
    assert bare.cells()[1:-1] == [UNKNOWN] * 6
    assert MARKS[1] in mark_of([row, bare])


@pytest.mark.parametrize(
    ("is_timed", "repeats", "state"),
    [(False, "all counts", REPEATED), (True, "tokens of `exact`", OLDER), (False, "", OLDER)],
)
def test_counts_that_the_suite_repeats_are_not_stale_and_times_are(
    checkout: tuple[Path, str], is_timed: bool, repeats: str, state: str
) -> None:
    """Where nobody knows what was measured, no test helps."""
    root, measured = checkout
    source = ResultSource("toy", "acmserve bench toy", ("product",), is_timed, repeats=repeats)
    report = {"machine": {"commit": measured, "cores": 1, "load": 0.0, "changed": []}}
    assert repeats_of([make_row(source, report, root)]) == ""
    commit(root, "product/plan.py", "two")
    row = make_row(source, report, root)
    assert (row.state, row.is_stale) == (state, state == OLDER)
    assert repeats_of([row]) == (f"The suite repeats {repeats}, in `{REPEATED_BY}`." if repeats else "")
    assert make_row(source, {}, root).is_stale


def test_the_test_that_repeats_counts_reads_the_files_that_say_so() -> None:
    test = (ROOT / REPEATED_BY).read_text(encoding="utf-8")
    repeated = {source.name: source for source in find_sources().values() if source.repeats}
    assert {name for name in find_sources() if f'read_result("{name}")' in test} == repeated.keys()
    assert [name for name, source in repeated.items() if not source.is_timed] == ["scale-counts"]


@pytest.mark.parametrize(
    ("report", "size"),
    [({"num_cases": 8}, "8 cases"), ({"cells": [{"num_repetitions": 5}]}, "5 repetitions"), ({"rows": [1]}, UNKNOWN)],
)
def test_sizes_are_read_from_older_files(report: dict[str, Any], size: str) -> None:
    assert find_size(report) == size


def test_every_result_has_a_source_and_every_source_measures_what_is_there() -> None:
    sources = find_sources()
    assert {file.stem for file in RESULTS.glob("*.json")} <= sources.keys()
    for source in sources.values():
        assert source.measures, source.name
        assert [path for path in source.measures if not (ROOT / path).is_dir()] == []


def test_a_pass_measures_all_that_it_calls_and_an_installation_the_engine_that_it_waits_for() -> None:
    """The eviction pass has a row for taking in the resent history. A first receipt comes from an engine."""
    sources = find_sources()
    called = ast.parse((ROOT / "benchmarks/micro/bench_budget_pass.py").read_text(encoding="utf-8"))
    modules = [one.module or "" for one in ast.walk(called) if isinstance(one, ast.ImportFrom)]
    product = [module.replace(".", "/") for module in modules if module.startswith("acmserve.context.")]
    assert "acmserve/context/session/history" in product
    measured = sources["budget-pass"].measures
    assert [path for path in product if not any(path.startswith(f"{one}/") for one in measured)] == []
    assert set(ENGINE) <= set(sources["first-receipt"].measures)


def test_a_part_that_an_ended_run_left_is_no_result(tmp_path: Path) -> None:
    shutil.copy(RESULTS / "hops.json", tmp_path)
    (tmp_path / "eval-learner.partial.json").write_text('{"partial": true}')
    assert read_ledger(tmp_path).keys() == {"hops"}


def test_a_file_that_nothing_makes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fastest.json").write_text("{}")
    with pytest.raises(AcmError, match=r"fastest\.json is made by nothing that is known"):
        read_ledger(tmp_path)


@pytest.mark.parametrize("name", sorted(file.stem for file in RESULTS.glob("*.json")))
def test_no_result_is_without_its_row_of_exact(name: str) -> None:
    """Or its source says why it has none, and has none indeed."""
    assert has_exact(read_result(name)) is not bool(find_sources()[name].no_exact)


@pytest.mark.parametrize("name", ["edit-cpu", "trace", "tasks", "sculptor"])
def test_a_result_whose_row_of_exact_is_gone_is_found(name: str) -> None:
    """Negative control. Receipts of `exact` that are left behind are no row."""
    text = json.dumps(read_result(name))
    assert has_exact(json.loads(text))
    without = re.sub(r'"exact(, predict)?"', '"gone"', text).replace('"receipts": {"gone"', '"receipts": {"exact"')
    assert not has_exact(json.loads(without))


@NEEDS_HISTORY
def test_the_ledger_is_what_the_results_say() -> None:
    """`acmserve bench report docs/ledger.md` makes it anew."""
    assert read_page("docs/ledger.md") == ledger_page(committed_ledger())


@NEEDS_HISTORY
def test_the_gate_is_red_while_one_is_stale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = git(ROOT, "rev-parse", "HEAD")
    (tmp_path / "commits.json").write_text(json.dumps({"machine": {"commit": None}}))
    assert main(["--results", str(tmp_path)]) == 0
    assert main(["--results", str(tmp_path), "--check"]) == 1
    assert "Of 1 files 1 are stale" in capsys.readouterr().out
    (tmp_path / "commits.json").write_text(json.dumps({"machine": {"commit": head, "changed": []}}))
    is_stale = find_state(head, [], find_sources()["commits"].measures, ROOT) != CURRENT
    assert main(["--results", str(tmp_path), "--check"]) == int(is_stale)


@NEEDS_HISTORY
@pytest.mark.parametrize(
    ("commits", "code", "told"),
    [
        (("", ""), 0, "yes (1 commit)"),
        (("", "~100"), 1, "no (2 commits)"),
        (("", "+"), 1, "no (1 commit, 1 result of a modified tree or of an unknown commit)"),
        (("", None), 1, "no (1 commit, 1 result of a modified tree or of an unknown commit)"),
        ((), 1, "no (0 commits)"),
    ],
)
def test_results_of_several_commits_or_of_a_modified_tree_are_found(
    commits: tuple[str | None, ...], code: int, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What stands behind HEAD of each file. The first row is the only one that passes."""
    for name, behind in zip(("commits", "identity"), commits, strict=False):
        plus = "+" if behind == "+" else ""
        commit = None if behind is None else git(ROOT, "rev-parse", f"HEAD{behind.removesuffix('+')}") + plus
        machine = {"commit": commit, "changed": ["README.md"] if plus else []}
        (tmp_path / f"{name}.json").write_text(json.dumps({"machine": machine}))
    assert main(["--results", str(tmp_path), "--one-commit"]) == code
    assert f"All results of one clean commit: {told}." in capsys.readouterr().out
    assert main(["--results", str(tmp_path)]) == 0, "nobody asked"


@pytest.mark.parametrize(
    ("file", "is_one"),
    [
        ("benchmarks/results/toy.json", True),
        ("docs/page.md", True),
        ("README.md", True),
        ("CHANGELOG.md", True),
        ("tests/test_toy.py", True),
        ("benchmarks/toy.py", False),
        ("product/plan.py", False),
        ("product/docs/page.md", False),
    ],
)
def test_commits_that_differ_in_results_pages_or_tests_alone_count_as_one(
    file: str, is_one: bool, checkout: tuple[Path, str]
) -> None:
    """Who records results of one sitting and then measures the next one is still at one commit of the program."""
    root, first = checkout
    second = commit(root, file, "more")
    rows = [row_of(root, {"machine": {"commit": one, "cores": 1, "changed": []}}) for one in (first, second)]
    assert one_commit(rows, root) == (is_one, "1 commit" if is_one else "2 commits")


def sections_of(page: str) -> list[str]:
    """What stands under one heading each. What stands in front of the first is one, too."""
    return re.split(r"^#+ ", page, flags=re.MULTILINE)


def unmarked(page: str, figure: Figure) -> list[str]:
    """The sections that show a stale figure without the words."""
    flat = (re.sub(r"\s+", " ", section) for section in sections_of(page))
    return [section for section in flat if figure.text in section and not any(mark in section for mark in MARKS)]


@NEEDS_HISTORY
@pytest.mark.parametrize("name", sorted({page for figure in FIGURES for page in figure.pages} - {*HISTORIC}))
def test_a_page_says_what_of_it_is_stale(name: str) -> None:
    rows, page = committed_ledger(), read_page(name)
    stale = [figure for figure in FIGURES if name in figure.pages and figure.file and rows[figure.file].is_stale]
    assert [figure.text for figure in stale if unmarked(page, figure)] == []


@NEEDS_HISTORY
def test_the_page_of_benchmarks_says_what_of_it_is_stale() -> None:
    assert unmarked_results(read_page(GENERATED)) == []


@NEEDS_HISTORY
@pytest.mark.parametrize("name", sorted({*checked_pages()} - {*HISTORIC}))
def test_a_page_calls_stale_what_is_and_nothing_else(name: str) -> None:
    page = read_page(name)
    assert unmarked_results(page) == []
    assert [section[:60] for section in marked(page) if not has_stale(section, name)] == []


def marked(page: str) -> list[str]:
    """The sections that say that something in them is stale."""
    return [section for section in sections_of(page) if any(mark in section for mark in MARKS)]


def has_stale(section: str, name: str) -> bool:
    """Whether a section of a page shows a stale figure, or names a stale file."""
    rows, flat = committed_ledger(), re.sub(r"\s+", " ", section)
    shown = {figure.file for figure in FIGURES if figure.file and name in figure.pages and figure.text in flat}
    return any(rows[file].is_stale for file in shown | {*re.findall(r"results/([\w-]+)\.json", section)})


@NEEDS_HISTORY
def test_a_page_that_calls_current_results_stale_is_found() -> None:
    """Negative control: a section of the ledger's rules, which shows no figure."""
    (section,) = marked("# Rules\nThey are [older than the code](ledger.md).\n")
    assert not has_stale(section, "README.md")


def unmarked_results(page: str, rows: Mapping[str, LedgerRow] | None = None) -> list[str]:
    """Stale files that a section is made of which does not say so."""
    rows = committed_ledger() if rows is None else rows
    named = [(part, re.findall(r"results/([\w-]+)\.json", part)) for part in sections_of(page)]
    return [
        name
        for part, names in named
        for name in names
        if rows[name].is_stale and not any(mark in part for mark in MARKS)
    ]


@NEEDS_HISTORY
def test_a_page_without_the_words_is_found() -> None:
    """Negative control. Whatever is current today, all results are older than the code here."""
    figure = next(figure for figure in FIGURES if figure.file == "tasks" and figure.pages == ("README.md",))
    page = read_page("README.md")
    assert unmarked(re.sub("|".join(MARKS), "new", page), figure)
    without = re.sub("|".join(MARKS), "new", read_page(GENERATED))
    rows = {name: replace(row, state=OLDER) for name, row in committed_ledger().items()}
    assert "trace" in unmarked_results(without, rows)
    assert unmarked_results(without, {name: replace(row, state=CURRENT) for name, row in rows.items()}) == []
