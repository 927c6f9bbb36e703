"""What `bench llama` counts and refuses: counts that do not add up, and a store that changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from acmserve.bench.agent.result_table import told_by
from acmserve.bench.edit.kinds import KINDS, QUICK, KindEdit, plan_edits
from acmserve.bench.edit.llama import WAYS_TABLE, as_report, check_counts
from acmserve.bench.harness.llama_cpp import BEST, NO_STORE, OWN_DEFAULTS, WAYS, Evaluated
from acmserve.bench.report.all import RESULTS
from acmserve.bench.report.screen.never import NEVER
from acmserve.bench.report.sections.edits import EDITS


@pytest.fixture(scope="module")
def edits() -> dict[str, KindEdit]:
    (found,) = plan_edits(range(10_000), 0, QUICK, num_rounds=1)
    return found


def counts_of(edits: dict[str, KindEdit], restored: int) -> dict[tuple[str, str], Evaluated]:
    """Each way computes 100 tokens of each kind, and the one without a store `restored` of a restore."""
    found = {}
    for way in WAYS:
        for kind, edit in edits.items():
            computed = restored if (way, kind) == (NO_STORE, "restore") else 100
            found[way.name, kind] = Evaluated(1.0, (1,), len(edit.prompt) - computed, computed)
    return found


def test_each_kind_has_what_each_way_evaluates(edits: dict[str, KindEdit]) -> None:
    report = as_report(counts_of(edits, restored=2_000), edits)
    assert report["gate"]["green"]
    assert [row["kind"] for row in report["rows"]] == list(KINDS)
    lines = [" ".join(line.split()) for line in told_by(WAYS_TABLE)(report)]
    assert "restore 3,060 60 100 100 2,000" in lines
    (section,) = (section for section in EDITS if section.files == ("llama",))
    assert callable(section.answer)
    reports: dict[str, Any] = {"llama": report | {"version": "version: 1"}}
    assert "A restore evaluates 100 tokens at its defaults, 100 at its best, and 2,000 without" in section.answer(
        reports
    )
    told = [note if isinstance(note, str) else note(reports) for note in section.notes]
    assert "llama.cpp says version: 1." in told[0]


def test_the_first_screen_says_so_while_nobody_has_counted() -> None:
    (sentence,) = (text for name, text in NEVER if name == "llama")
    assert sentence.startswith("llama.cpp with its store of prompts in host memory")
    page = (RESULTS.parents[1] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert (sentence in page) is not (RESULTS / "llama.json").is_file()


def test_a_store_that_changes_nothing_is_red(edits: dict[str, KindEdit]) -> None:
    report = as_report(counts_of(edits, restored=100), edits)
    (failure,) = report["gate"]["failures"]
    assert failure == "the store changes nothing: a restore evaluates 100 tokens with it, 100 without"


@pytest.mark.parametrize("way", [BEST, OWN_DEFAULTS, NO_STORE], ids=lambda way: str(way.name))
def test_counts_that_do_not_add_up_are_red(edits: dict[str, KindEdit], way: Any) -> None:
    counts = counts_of(edits, restored=2_000)
    counts[way.name, "fold"] = replace(counts[way.name, "fold"], num_kept=7)
    (failure,) = check_counts(as_report(counts, edits)["rows"])
    assert failure.startswith(f"fold, {way.name}: 107 tokens are counted, ")
