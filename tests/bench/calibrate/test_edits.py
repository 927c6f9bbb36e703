"""Which edits a calibration serves, what is left out and told, and when too few are left. Without an engine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from acmserve.bench.calibrate.edits import ALIKE, FEW_QUESTIONS, GENERIC, find_askable, questions_line
from acmserve.bench.calibrate.main import find_edits
from acmserve.bench.calibrate.transcripts import OwnEdit
from acmserve.bench.harness.run_log import RUN
from acmserve.bench.tasks.generators.case import CasePiece, CaseQuestion, TaskCase, first_word_is
from acmserve.errors import AcmError

QUESTION = CaseQuestion("and then", "amber", ("amber", "birch"), first_word_is)
CASE = TaskCase("t", "s", 0, (CasePiece("a b c\n", is_folded=True), CasePiece("d e\n")), (QUESTION,) * 2)
ALIKE_CASE = replace(CASE, questions=(QUESTION, replace(QUESTION, choices=("amber", "amulet"))))
NOUNS = ("save", "load", "render", "parse")


class Halves:
    """A token for each three letters of a word, a space for one of them. It begins no text."""

    def __call__(self, text: str, **_: Any) -> Any:
        words = [f" {word}" for word in text.split()]
        parts = [word[at : at + 3] for word in words for at in range(0, len(word), 3)]
        return SimpleNamespace(input_ids=[int.from_bytes(part.encode()) for part in parts])


def conversation(number: int, last: str) -> dict[str, Any]:
    tests = " ".join(f"test_{noun}_{number} return_{noun}" for noun in NOUNS)
    result = {"role": "tool", "content": f"{tests} " * 15}
    said = {"role": "assistant", "content": "reading"}
    return {"messages": [{"role": "user", "content": "go"}, said, result, said, result, {**said, "content": last}]}


def written(folder: Path, *lasts: str) -> Path:
    file = folder / "t.jsonl"
    file.write_text("\n".join(json.dumps(conversation(number, last)) for number, last in enumerate(lasts)))
    return file


def test_an_edit_that_cannot_be_asked_is_left_out_and_counted_by_its_reason() -> None:
    found = find_askable(GENERIC, [CASE, ALIKE_CASE, None, CASE, ALIKE_CASE], Halves(), 1000)
    assert [one.case for one in found.edits] == [CASE, CASE]
    assert found.left_out == {ALIKE: 2, FEW_QUESTIONS: 1}
    assert str(found).startswith(f"2 of 5 edits (generic) can be asked; 2 left out: {ALIKE}; 1 left out: fewer than 2")
    found.check_enough("Do this.")


def test_the_window_has_room_for_both_prompts_and_the_token_of_the_answer() -> None:
    (one,) = find_askable(GENERIC, [CASE], Halves(), 1000).edits
    longest = len(one.tokens.folded) + len(one.tokens.asked[0].tokens)
    assert longest > len(one.tokens.full)
    assert find_askable(GENERIC, [CASE], Halves(), longest + 1).left_out == {}
    found = find_askable(GENERIC, [CASE], Halves(), longest)
    assert found.left_out == {f"longer than {longest} tokens": 1}
    with pytest.raises(AcmError, match=r"0 of 1 edits .+ 1 left out: longer than .+ 2 are needed, .+ Do this\."):
        found.check_enough("Do this.")


def test_code_as_agents_write_it_is_asked_of_every_edit_and_what_was_redrawn_is_told(tmp_path: Path) -> None:
    RUN.begin()
    lasts = [f"mended test_load_{n} so that test_save_y passes now, run test_render_{n} again please" for n in range(9)]
    found = find_edits([CASE, CASE], written(tmp_path, *lasts), Halves(), 2000)
    assert len(found) == 18 + 2
    told = "\n".join(RUN.said)
    assert "have another wrong word than the one drawn first" in told
    assert "18 of 18 edits (your own) can be asked" in told
    RUN.begin()


def test_too_few_edits_of_conversations_are_refused_with_their_number_and_the_remedy(tmp_path: Path) -> None:
    file = written(tmp_path, "test_a test_b test_c test_d test_e test_f test_g test_h")
    file.write_text(file.read_text().replace("return_", "test_"))
    with pytest.raises(AcmError) as raised:
        find_edits([CASE, CASE], file, Halves(), 2000)
    assert str(raised.value) == (
        f"0 of 2 edits (your own) can be asked; 2 left out: {FEW_QUESTIONS}. 2 are needed, since one half judges the "
        f"other. Add conversations to --transcripts {file}, shorter ones or with other last messages, or leave "
        "--transcripts away."
    )
    with pytest.raises(AcmError, match=r"1 of 2 edits \(generic\) can be asked.+Name a model with a longer window"):
        find_edits([CASE, ALIKE_CASE], None, Halves(), 2000)


def test_questions_that_are_as_they_were_drawn_are_not_told() -> None:
    assert questions_line([OwnEdit(CASE), OwnEdit(None)]) is None
    line = questions_line([OwnEdit(CASE, 2, 1), OwnEdit(None, num_dropped=4)])
    assert line is not None
    assert "2 have another wrong word" in line
    assert "5 are left out" in line
