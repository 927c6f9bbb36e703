"""The forecast from token ids against the engine's own plan. For real receipts see tests/engine/test_oracle.py."""

from __future__ import annotations

from typing import Literal

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from acmserve.engine.requests.request_plan import plan_segments
from acmserve.engine.requests.source_store import SourceStore, StoreLimits
from acmserve.plan.estimate import MAX_SEQUENCES, EstimatedSequence, Forecast, MovedRange, ServedTokens, forecast
from acmserve.plan.fidelity import RequestedFidelity, plan_wish
from acmserve.plan.owner import Owner
from acmserve.plan.pieces import Move
from acmserve.plan.repair import Repair
from acmserve.plan.rules.rotations import MAX_ROTATIONS
from acmserve.plan.source import Tokens
from tests.plan.test_planner import BLOCK_SIZE, source, tokens

OWNER = Owner("s")
MIN_MOVE_TOKENS = 4
REPAIR = Repair(head_tokens=6, tail_tokens=2, ranges=((40, 46),))
OLD = np.arange(100, dtype=np.int32)


def test_fold_with_marker() -> None:
    served = ServedTokens().after(OLD, 0, [])
    prompt = np.concatenate([OLD[:30], tokens(900, 901, 902), OLD[60:], tokens(903, 904)])
    assert forecast(prompt, served, "reuse") == Forecast(30, 40, 5, (Move(33, 60, 40, 0),))
    assert forecast(prompt, served, "exact") == Forecast(30, 0, 45, ())


def test_nothing_served_nothing_kept() -> None:
    assert forecast(OLD, ServedTokens(), "reuse") == Forecast(0, 0, 100, ())


def test_exact_keeps_what_was_not_moved() -> None:
    served = ServedTokens((EstimatedSequence(OLD, (MovedRange(40, 20),)),))
    prompt = np.append(OLD, tokens(900))
    assert forecast(prompt, served, "exact") == Forecast(40, 0, 61, ())
    assert forecast(prompt, served, "reuse") == Forecast(100, 0, 1, ())


def test_what_was_moved_too_often_is_computed() -> None:
    served = ServedTokens((EstimatedSequence(OLD, (MovedRange(0, 100, MAX_ROTATIONS),)),))
    prompt = np.concatenate([tokens(900), OLD, tokens(901)])
    assert forecast(prompt, served, "reuse") == Forecast(0, 0, 102, ())


def test_a_growing_conversation_stays_one_sequence() -> None:
    served = ServedTokens().after(OLD[:50], 0, []).after(OLD, 50, [])
    assert [len(sequence.tokens) for sequence in served.sequences] == [100]


def test_moved_ranges_follow_the_receipts() -> None:
    """A fold, an append, a fold in front of the first: the text behind both was moved twice."""
    folded = np.concatenate([OLD[:30], tokens(900), OLD[60:]])
    served = ServedTokens().after(OLD, 0, []).after(folded, 30, [(31, 60, 40)])
    assert served.sequences[0].moved == (MovedRange(31, 40, 1),)
    served = served.after(np.append(folded, tokens(902)), len(folded), [])
    assert served.sequences[0].moved == (MovedRange(31, 40, 1),)
    again = np.concatenate([OLD[:10], tokens(901), OLD[20:30], tokens(900), OLD[60:]])
    served = served.after(again, 10, [(11, 20, len(again) - 11)])
    assert served.sequences[0].moved == (MovedRange(11, len(again) - 11, 2),)


def test_the_memory_is_bounded() -> None:
    served = ServedTokens()
    for first in range(2 * MAX_SEQUENCES):
        served = served.after(OLD + first, 0, [])
    assert len(served.sequences) == MAX_SEQUENCES


Step = tuple[Literal["exact", "reuse", "repair"], list[int], int]
steps = st.lists(
    st.tuples(
        st.sampled_from(["exact", "reuse", "reuse", "repair"]),
        st.lists(st.integers(0, 60), max_size=4),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=12,
)


COMPUTED_AGAIN: list[Step] = [*[("reuse", [0], 0)] * 4, ("exact", [], 0), *[("reuse", [0], 0)] * 6]
"""The session has the text behind the folds twice: turned three times, and as `exact` computed it."""


@given(steps)
@example(COMPUTED_AGAIN)
@settings(max_examples=200, deadline=None)
def test_forecast_equals_the_plan_of_the_engine(script: list[Step]) -> None:
    """Over a conversation of edits: the same kept, moved and computed, but for an exact prefix's last block."""
    store, served, text = SourceStore(StoreLimits()), ServedTokens(), OLD[:60]
    for turn, (fidelity, cuts, num_new) in enumerate(script):
        text = _edited(text, cuts, np.arange(num_new, dtype=np.int32) + 1000 + 10 * turn)
        sources = store.get(OWNER)
        planned = plan_wish(text, sources, RequestedFidelity(fidelity, REPAIR), min_move_tokens=MIN_MOVE_TOKENS)
        estimated = forecast(text, served, fidelity, MIN_MOVE_TOKENS, REPAIR)
        plan = planned.plan
        num_moved = sum(move.num_tokens for move in plan.moves)
        if fidelity == "exact":
            assert 0 <= estimated.num_kept - plan.num_kept < BLOCK_SIZE
        else:
            assert (estimated.num_kept, estimated.num_moved, estimated.moves) == (plan.num_kept, num_moved, plan.moves)
        assert estimated.num_kept + estimated.num_moved + estimated.num_computed == len(text)
        _, marks = plan_segments(plan, sources, OWNER)
        store.add(OWNER, source(text, tuple(marks)))
        served = served.after(text, plan.num_kept, [(m.dst_start, m.src_start, m.num_tokens) for m in plan.moves])


def _edited(text: Tokens, cuts: list[int], new: Tokens) -> Tokens:
    """Fold five tokens at each position, drop a head that grows too long, append."""
    for position in cuts:
        text = np.concatenate([text[:position], tokens(900 + position), text[position + 5 :]])
    return np.concatenate([text[-120:], new]) if len(text) + len(new) else tokens(1)
