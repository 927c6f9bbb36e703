"""Turns that had another prompt with precompute, since it evicts early: no ordinary ones, and told apart."""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.bench.agent.result_table import told_by
from acmserve.bench.precompute.bars import waiting_by_prompt
from acmserve.bench.precompute.table import BARS, as_rounds_report
from acmserve.bench.report.sections.missed import PAIRED
from acmserve.bench.report.sections.paired import prompts_note
from acmserve.bench.report.sections.renewed import renewed
from tests.support.docs.figures import read_result
from tests.support.recorded.rounds import ABOUT, EDITED, FAST, NUM_TURNS, judged, made_rounds, made_turns


def evicted_early(by: int = 4) -> dict[str, list[Any]]:
    """The turns of one that evicts before `off` does: its prompts are shorter until `off` follows."""
    turns = made_turns(FAST)
    early = EDITED - by
    turns["evicted_tokens"][early], turns["evicted_tokens"][EDITED] = turns["evicted_tokens"][EDITED], 0
    for number in range(early, EDITED):
        turns["prompt_tokens"][number] -= 2000
        turns["seconds"][number] *= 0.5
    return turns


def test_a_turn_that_had_another_prompt_is_no_ordinary_one() -> None:
    """It computes as much, and attends to a shorter context. What that saves is no gain of ordinary turns."""
    found = judged(lambda _: evicted_early())
    num_plain = NUM_TURNS - 1 - 4 - 1
    assert (found["ordinary"].num_turns, found["ordinary"].value, found["together"].value) == (5 * num_plain, 1.0, 1.0)
    assert found["waiting"].num_turns == 5 * NUM_TURNS, "an early eviction is a part of what precompute does"


def test_all_waiting_is_told_apart_by_whether_the_prompt_was_the_same() -> None:
    report = as_rounds_report(ABOUT, made_rounds(lambda _: evicted_early()))
    found = report["waiting_by_prompt"]
    assert found == waiting_by_prompt(report["rounds"])
    assert found["other"] == {"num_turns": 20, "value": 0.5, "interval": [0.5, 0.5]}
    assert found["same"]["num_turns"] == 5 * NUM_TURNS - 20
    whole = report["bars"][2]["value"]
    assert found["other"]["value"] < whole < found["same"]["value"]
    note = prompts_note(report)
    assert note.startswith(
        "In 20 of 100 turns the prompt was another with precompute. It carries out an eviction early"
    )
    assert note.endswith("as long in turns with the same prompt, and 0.50 [0.50, 0.50] times in the others.")
    assert ["`cwl`", "all waiting, turns with another prompt", "20", "0.50 [0.50, 0.50]", "", "a part"] in [
        list(row) for row in BARS.rows(report)
    ]
    alike = as_rounds_report(ABOUT, made_rounds(lambda _: made_turns(FAST)))
    assert alike["waiting_by_prompt"]["other"] == {"num_turns": 0, "value": None, "interval": None}
    assert prompts_note(alike) == "Each of 100 turns had the same prompt with precompute and without."
    assert "another prompt" not in "\n".join(told_by(BARS)(alike))


@pytest.mark.parametrize(
    ("name", "num_ordinary", "median", "together", "num_other", "same", "other"),
    [
        (PAIRED[0], 84, 0.9819, 0.9315, 110, 0.8985, 0.7954),
        (PAIRED[1], 167, 0.993, 0.9869, 0, 0.8245, None),
    ],
)
def test_recorded_turns_with_another_prompt_are_found_in_their_records(
    name: str, num_ordinary: int, median: float, together: float, num_other: int, same: float, other: float | None
) -> None:
    """The files are older than the rule. Under CWL it takes half of the pairs that they called ordinary."""
    report = renewed(name, read_result(name))
    found = [bar["value"] for bar in report["bars"][:2]]
    assert [bar["num_turns"] for bar in report["bars"][:2]] == [num_ordinary] * 2
    assert found == pytest.approx([median, together], abs=1e-4)
    parts = report["waiting_by_prompt"]
    assert (parts["other"]["num_turns"], parts["same"]["num_turns"]) == (num_other, 212 - num_other)
    assert [parts["same"]["value"], parts["other"]["value"]] == [
        pytest.approx(same, abs=1e-4),
        pytest.approx(other, abs=1e-4),
    ]
