"""Edited turns behind a long pause: as rounds were played, and as the tools of real agents would have them."""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.bench.agent.pause import FILE_EDIT, FILE_READ, SHELL
from acmserve.bench.agent.recording import waits_of
from acmserve.bench.precompute.real_pauses import REAL_PAUSES, _script, edited_turns
from acmserve.bench.precompute.runs import PREDICT, THOUGHTS
from acmserve.bench.report.sections.paired import real_pauses_note
from tests.support.docs.figures import read_result

NUM_ROUNDS = 2


def made(edited: dict[int, float], *, policy: str = "cwl") -> dict[str, Any]:
    """Two rounds of a task each. `edited` turns of the first one, and the seconds in front of them as played."""
    rounds = []
    for number in range(NUM_ROUNDS):
        num_turns = _script(NUM_ROUNDS).with_tasks(number, 1).num_turns
        turns = {"evicted_tokens": [0] * num_turns, "pause_seconds": [0.0] * num_turns}
        for place, seconds in edited.items() if number == 0 else ():
            turns["evicted_tokens"][place], turns["pause_seconds"][place] = 7, seconds
        rounds.append({"number": number, "runs": {PREDICT: {"turns": turns}}})
    return {"rounds_of": {"policy": policy, "num_tasks": 1, "num_rounds": NUM_ROUNDS}, "rounds": rounds}


def test_an_edited_turn_has_the_wait_of_the_tool_in_front_of_it() -> None:
    """The first task asks, looks, reads, asks the manual, edits, reads, edits and runs. Then it marks, and answers."""
    task = _script(NUM_ROUNDS).with_tasks(0, 1)
    waits = waits_of(task.requests)
    for wait in (FILE_READ, FILE_EDIT, SHELL):
        place = waits.index(wait)
        found = edited_turns(made({place: 0.9}))
        assert found is not None
        assert (found.num, found.as_played, found.behind_files) == (1, 0, int(wait is not SHELL))
        assert found.expected == pytest.approx(1 - wait.share_below(1.0))
    asked = edited_turns(made({0: 5.0}))
    assert asked is not None
    assert (asked.as_played, asked.by_kind, asked.expected, asked.behind_files) == (1, 1, 1.0, 0), (
        "a person takes longer than a second"
    )


def test_a_later_step_of_one_request_waits_for_nothing() -> None:
    last = _script(NUM_ROUNDS).with_tasks(0, 1).num_turns - 1
    found = edited_turns(made({last: 0.0}))
    assert found is not None
    assert (found.num, found.as_played, found.by_kind, found.expected, found.behind_files) == (1, 0, 0, 0.0, 0)


def test_a_second_is_long_as_the_bar_has_it() -> None:
    found = edited_turns(made({2: 1.0, 3: 0.999}))
    assert found is not None
    assert (found.num, found.as_played) == (2, 1)


def test_turns_that_are_not_those_of_the_script_are_an_error() -> None:
    report = made({})
    report["rounds"][1]["runs"][PREDICT]["turns"]["evicted_tokens"].append(0)
    with pytest.raises(ValueError, match="zip"):
        edited_turns(report)


def test_dropped_reasoning_calls_no_tools() -> None:
    report = made({}, policy=THOUGHTS)
    assert edited_turns(report) is None
    assert real_pauses_note(report) == ""
    assert list(REAL_PAUSES.rows(report)) == []


@pytest.mark.parametrize("name", ["precompute-paired", "precompute-paired-clear"])
def test_recorded_rounds_tell_them_beside_the_turns_of_their_bar(name: str) -> None:
    report = read_result(name)
    found = edited_turns(report)
    assert found is not None
    assert found.as_played == report["bars"][-1]["num_turns"], "the bar counts the same turns"
    assert 0 < found.expected < found.num
    cells = [list(row) for row in REAL_PAUSES.rows(report)]
    assert [row[1:] for row in cells[:2]] == [[str(found.num), str(one)] for one in (found.as_played, found.by_kind)]
    told = real_pauses_note(report)
    assert f"{found.by_kind} of {found.num} edited turns would come behind" in told
    assert f"Of {found.num} such turns {found.behind_files} follow a tool that searches, reads or edits a file." in told
    assert 0 < found.behind_files <= found.num
