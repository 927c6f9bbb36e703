"""The page of benchmarks: a section without its results is an error, unless it is an optional one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.report.page import HEAD, page
from acmserve.bench.report.sections.thoughts import RESULT, THOUGHTS
from acmserve.errors import AcmError

COUNTS = ("prompt_tokens", "kept_tokens", "moved_tokens", "computed_tokens", "precomputed_tokens")


def made_way(name: str, seconds: float, *counts: int) -> dict[str, Any]:
    times = {"median_seconds": seconds, "median_append_seconds": 0.3, "appends": seconds / 0.3}
    return {"name": name, **times, "median_tokens": dict(zip(COUNTS, counts, strict=False))}


def made_report() -> dict[str, Any]:
    ways = [made_way("reuse", 0.33, 1500, 40, 1400, 60, 0), made_way("stock", 9.0)]
    return {"sizes": "30 steps", "num_chains": 2, "ways": ways}


def written(folder: Path, report: dict[str, Any]) -> Path:
    (folder / f"{RESULT}.json").write_text(json.dumps(report), encoding="utf-8")
    return folder


def test_dropped_reasoning_stands_on_the_page_once_it_was_measured(tmp_path: Path) -> None:
    assert page(THOUGHTS, tmp_path) == HEAD
    shown = page(THOUGHTS, written(tmp_path, made_report()))
    assert "## Dropped reasoning" in shown
    assert "| stock vLLM | 9,000 ms | 300 ms | 30.00 |  |  |" in shown
    assert "| `reuse` | 330 ms | 300 ms | 1.10 | 1,400 | 60 |" in shown
    assert "The medians of 2 chains" in shown


def test_any_other_section_needs_its_results(tmp_path: Path) -> None:
    with pytest.raises(AcmError, match=r"precompute-thoughts\.json is missing"):
        page([replace(section, is_optional=False) for section in THOUGHTS], tmp_path)
