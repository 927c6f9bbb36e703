"""A page says which command made its tables, where that is not the one that it names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acmserve.bench.provenance.made_by import made_by
from acmserve.bench.report.ledger import read_ledger
from acmserve.bench.report.page import sections_of
from acmserve.bench.report.page_section import PageSection


@pytest.mark.parametrize(
    ("recorded", "differs"),
    [
        ("acmserve bench trace --turns 12 --policies cwl,recency@1", False),
        ("acmserve bench trace --turns=12 --policies cwl,recency@1 --resume --work there --plot a.png", False),
        ("acmserve bench trace --llama-server llama-server --policies cwl,recency@1 --turns 12", False),
        ("acmserve bench trace --policies cwl,recency@1 --turns 12 --repetitions 1", True),
        ("acmserve bench trace --policies recency@1,cwl --turns 12", True),
        ("acmserve bench trace --policies cwl,recency@1", True),
        (None, False),
    ],
)
def test_a_section_says_what_made_it_where_its_command_does_not(recorded: str | None, differs: bool) -> None:
    """Another order, and where results went, make no other table."""
    command = "acmserve bench trace --policies cwl,recency@1 --turns 12"
    found = made_by((command, "make trace"), {"machine": {"command": recorded}})
    assert found == (f"`{recorded}`" if differs else "")


def test_recorded_commands_stand_behind_those_of_their_sections(tmp_path: Path) -> None:
    """With the name of the file where a section has several."""
    files = {
        "tasks": "acmserve bench tasks --seed 1 --cases 45",
        "tasks-seed2": "acmserve bench tasks --seed 2 --cases 14",
        "tasks-seed3": "acmserve bench tasks --seed 3 --cases 14 --max-minutes 18",
    }
    for name, command in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"machine": {"command": command}}), encoding="utf-8")

    def told(*names: str, command: str = files["tasks"]) -> str:
        section = PageSection("One", "Which?", command, "Green.", names, ())
        lines = "\n".join(sections_of([section], tmp_path, read_ledger(tmp_path))).splitlines()
        return next(line for line in lines if line.startswith("**Command**: "))

    assert told("tasks") == f"**Command**: `{files['tasks']}`"
    behind = f"Made by `{files['tasks-seed3']}`"
    assert told(*files) == f"**Command**: `{files['tasks']}`. {behind} (tasks-seed3.json)."
    assert told("tasks-seed3", command="make it") == f"**Command**: `make it`. {behind}."
