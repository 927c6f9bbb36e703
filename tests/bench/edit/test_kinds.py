"""The prompts of `bench edit --kinds`: each is the edit that it is named after, and one that can be carried out."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from acmserve.bench.edit.kinds import KINDS, MIN_PIECE, POSITIONS, KindEdit, Shape, plan_edits
from acmserve.plan.planner import DEFAULT_MIN_MOVE_TOKENS, plan_edit
from acmserve.plan.source import ServedSequence

TEXT = range(20_000)
SHAPES = [Shape(size, position) for size in (500, 1500, 6000) for position in POSITIONS]


def plan(shape: Shape, number: int = 0) -> dict[str, KindEdit]:
    return {edit.kind: edit for edit in plan_edits(TEXT, number, shape, list(KINDS))}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_counts_add_up_and_the_append_has_as_many_new_tokens(shape: Shape) -> None:
    for edit in plan(shape).values():
        assert len(edit.turns[0]) == shape.num_context
        assert edit.prompt[: edit.num_front] == edit.turns[0][: edit.num_front]
        assert edit.append[: len(edit.prompt)] == edit.prompt
        new = edit.append[len(edit.prompt) :]
        assert len(new) == edit.num_new > 0
        assert set(new).isdisjoint(edit.prompt)
        assert set(new).isdisjoint(edit.turns[0])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kinds_share_a_context_and_no_new_token(shape: Shape) -> None:
    edits = plan(shape)
    assert len({edit.turns[0] for edit in edits.values()}) == 1
    new = {kind: set(edit.append) - set(edit.turns[0]) for kind, edit in edits.items()}
    assert all(a.isdisjoint(b) for a, b in combinations(new.values(), 2))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_planner_reuses_what_the_gate_asks_for(shape: Shape) -> None:
    assert MIN_PIECE == DEFAULT_MIN_MOVE_TOKENS
    for kind, edit in plan(shape).items():
        sources = [
            ServedSequence(np.array(turn, dtype=np.int32), 128, (b"",) * (len(turn) // 128))
            for turn in edit.turns[::-1]
        ]
        planned = plan_edit(np.array(edit.prompt, dtype=np.int32), sources, allow_moves=True)
        reused = planned.num_kept + sum(move.num_tokens for move in planned.moves)
        assert reused - edit.num_front == edit.num_behind, kind


def test_every_kind_is_the_edit_of_its_name() -> None:
    shape = Shape(1100, "front", marker=2, new=3)
    edits = plan(shape)
    p, f = shape.prefix, shape.folded
    assert (p, f) == (100, 400)
    context = edits["append"].turns[0]
    old = {kind: tuple(token for token in edit.prompt if token in context) for kind, edit in edits.items()}
    assert old["append"] == old["insertion"] == old["restore"] == context
    assert old["fold"] == old["deletion"] == context[:p] + context[p + f :]
    assert (edits["fold"].num_new, edits["deletion"].num_new) == (5, 3)
    assert old["two-holes"] == context[:p] + context[p + 200 : p + 500] + context[p + 700 : p + 1000]
    assert (edits["two-holes"].num_new, edits["ten-holes"].num_new) == (7, 23)
    assert old["head-eviction"] == context[f:]
    assert edits["restore"].turns[1][: p + 2] == context[:p] + edits["restore"].turns[1][p : p + 2]
    assert old["moved-paragraph"] == context[:p] + context[800:] + context[p : p + f] + context[p + f : 800]
    assert edits["edit-of-an-edit"].turns[1][-600:] == context[p + f :]
    assert old["edit-of-an-edit"] == context[:33] + context[66:p] + context[p + f :]
    assert old["replaced-token"] == context[:p] + context[p + 1 :]
    assert edits["replaced-token"].num_new == 4


def test_repetitions_read_other_text() -> None:
    starts = {plan(Shape(), number)["fold"].prompt[0] for number in range(6)}
    assert len(starts) == 6


def test_a_text_too_short_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match="the text has 9000 tokens, 1500 of context need 10740"):
        plan_edits(range(9000), 0, Shape(1500), ["fold"])
