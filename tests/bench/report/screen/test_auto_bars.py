"""Bars of `auto` beside stock vLLM at loads of four sessions: missed, met, and not measured."""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.bench.report.screen.never import NEVER
from acmserve.bench.report.sections.loads import AUTO_BARS, LOADS
from acmserve.bench.report.sections.missed import BESIDE, beside_lines
from tests.support.docs.figures import read_result

WAITS, RATE = "edited_beside_stock", "rate_beside_stock"
CLEAR, OFTEN = "trace-4-clear", "trace-4"
BARS = {one.name: one for one in AUTO_BARS}


def made(name: str, key: str, ratio: float | None, server: str = "auto") -> dict[str, Any]:
    """A load in which one server has one ratio. `reuse` is always far better than any bar asks."""
    found = None if ratio is None else {"ratio": ratio, "interval": [ratio - 0.1, ratio + 0.1]}
    best = {WAITS: {"ratio": 0.1, "interval": [0.1, 0.1]}, RATE: {"ratio": 9.0, "interval": [9.0, 9.0]}}
    return {name: {"rows": [{"server": "reuse", **best}, {"server": server, key: found}]}}


def told(reports: dict[str, Any]) -> str:
    """What stands beside the five numbers."""
    (name,) = reports
    (bar,) = (one for one in BESIDE if one.files == (name,))
    return bar.told(reports)


@pytest.mark.parametrize(
    ("name", "key", "missed", "met", "said"),
    [
        (CLEAR, WAITS, 0.51, 0.5, "and clearing, waits for first tokens after an edit under `auto` are 0.51"),
        (OFTEN, RATE, 1.99, 2.0, "and a third of the turns edited, turns a second under `auto` are 1.99"),
    ],
)
def test_a_bar_of_auto_is_told_while_it_is_missed(name: str, key: str, missed: float, met: float, said: str) -> None:
    found = told(made(name, key, missed))
    assert said in found
    limit = "0.5 at most" if key == WAITS else "2 at least"
    assert found.endswith(f"times stock's. They were to be {limit}.")
    assert told(made(name, key, met)) == ""
    assert beside_lines(made(name, key, missed)) == [found]
    assert beside_lines(made(name, key, met)) == []


@pytest.mark.parametrize(("name", "key"), [(CLEAR, WAITS), (OFTEN, RATE)])
def test_a_load_without_auto_or_without_an_edit_meets_no_bar(name: str, key: str) -> None:
    for report in (made(name, key, 0.4, server="exact"), made(name, key, None)):
        assert "under `auto` were not measured. They were to be" in told(report)
        assert BARS[name].verdict(report).endswith(": not measured.")


@pytest.mark.parametrize(
    ("name", "key", "ratio", "word"),
    [
        (CLEAR, WAITS, 0.5, "met"),
        (CLEAR, WAITS, 0.6, "missed"),
        (OFTEN, RATE, 2.1, "met"),
        (OFTEN, RATE, 1.9, "missed"),
    ],
)
def test_the_section_of_the_load_says_the_verdict(name: str, key: str, ratio: float, word: str) -> None:
    (section,) = (one for one in LOADS if one.files[0] == name)
    notes = [note(made(name, key, ratio)) for note in section.notes if getattr(note, "__name__", "") == "verdict"]
    assert [note.rpartition(" ")[2] for note in notes] == [f"{word}."]


def test_clearing_tells_which_turns_edit_beside_those_of_the_whole_trace() -> None:
    """A first edit moves nothing that was moved before, so a window of first ones says little of the rest."""

    def row(*turns: list[int]) -> dict[str, Any]:
        counts = {"num_turns": sum(map(len, turns)), "num_edits": sum(map(sum, turns))}
        return {"policy": "clear_tool_uses", "server": "auto", **counts, "turns": [{"is_edited": one} for one in turns]}

    whole = read_result("trace-auto")
    timed = {"rows": [row([0, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0])]}
    (section,) = (one for one in LOADS if one.files[0] == CLEAR)
    assert section.files == (CLEAR, "trace-auto")
    (note,) = (note for note in section.notes if getattr(note, "__name__", "") == "first_edits")
    assert note({CLEAR: timed, "trace-auto": whole}) == (
        "4 of 12 turns (33 %) edit, 2 of them as the first edit of their session. Over 27 turns of each session at "
        "6,000 tokens it is otherwise. There 19 of 108 turns (18 %) edit, 4 of them as the first edit of their session."
    )


def test_other_loads_have_no_bar_of_auto() -> None:
    (section,) = (one for one in LOADS if one.files == ("trace-16",))
    assert not any(getattr(note, "__name__", "") == "verdict" for note in section.notes)


def test_until_a_load_was_run_its_bar_of_auto_is_said_to_be_not_measured() -> None:
    said = dict(NEVER)
    assert "turns a second of `reuse` and `auto`" in said[OFTEN]
    assert "first tokens of `auto` after an edit" in said[CLEAR]
