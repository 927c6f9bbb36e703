"""The prompts of `bench edit`: each is the edit that it is named after, and one that can be carried out."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from acmserve.bench.edit.kinds import KINDS, QUICK, EditSizes, KindEdit, plan_edits
from acmserve.plan.planner import plan_edit
from acmserve.plan.source import ServedSequence

TEXT = range(20_000)
SIZES = [EditSizes(), QUICK, EditSizes(40, 90, 151, 3, 5)]


def plan(sizes: EditSizes, number: int = 0) -> dict[str, KindEdit]:
    return plan_edits(TEXT, number, sizes, 2)[0]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_counts_add_up_and_the_append_has_as_many_new_tokens(sizes: EditSizes) -> None:
    for edit in plan(sizes).values():
        assert len(edit.turns[0]) == sizes.context
        assert edit.prompt[: edit.num_front] == edit.turns[0][: edit.num_front]
        assert edit.append[: len(edit.prompt)] == edit.prompt
        new = edit.append[len(edit.prompt) :]
        assert len(new) == edit.num_new > 0
        assert set(new).isdisjoint(edit.prompt)
        assert set(new).isdisjoint(edit.turns[0])


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_kinds_and_rounds_share_a_context_and_no_new_token(sizes: EditSizes) -> None:
    edits = [edit for edits in plan_edits(TEXT, 3, sizes, 3) for edit in edits.values()]
    assert len({edit.turns[0] for edit in edits}) == 1
    new = [set(edit.append) - set(edit.turns[0]) for edit in edits]
    assert all(a.isdisjoint(b) for a, b in combinations(new, 2))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_planner_reuses_what_the_gate_asks_for(sizes: EditSizes) -> None:
    for kind, edit in plan(sizes).items():
        sources = [
            ServedSequence(np.array(turn, dtype=np.int32), 128, (b"",) * (len(turn) // 128))
            for turn in edit.turns[::-1]
        ]
        planned = plan_edit(np.array(edit.prompt, dtype=np.int32), sources, allow_moves=True)
        reused = planned.num_kept + sum(move.num_tokens for move in planned.moves)
        assert reused - edit.num_front == edit.num_behind, kind


def test_every_kind_is_the_edit_of_its_name() -> None:
    edits = plan(EditSizes(100, 400, 600, 2, 3))
    assert set(edits) == set(KINDS)
    context = edits["append"].turns[0]
    old = {kind: tuple(token for token in edit.prompt if token in context) for kind, edit in edits.items()}
    assert old["append"] == old["insertion"] == old["restore"] == context
    assert old["fold"] == old["deletion"] == context[:100] + context[500:]
    assert (edits["fold"].num_new, edits["deletion"].num_new) == (5, 3)
    assert old["two-holes"] == context[:100] + context[300:600] + context[800:1100]
    assert edits["two-holes"].num_new == 7
    assert edits["restore"].turns[1][:102] == context[:100] + edits["restore"].turns[1][100:102]


def test_repetitions_read_other_text() -> None:
    assert len({plan(EditSizes(), number)["fold"].prompt[0] for number in range(6)}) == 6


def test_a_text_too_short_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match="the text has 6000 tokens, 5500 of context need 6700"):
        plan_edits(range(6000), 0, EditSizes(), 1)
