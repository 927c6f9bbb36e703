"""The history of a session's turns: totals count what was recorded, whatever has gone since. Bounds hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.context.session.turns import history as module
from acmserve.context.session.turns.history import MAX_NOTES, NO_TURNS, TurnHistory
from acmserve.context.session.turns.totals import RECEIPT_COUNTS, TurnTotals
from acmserve.context.session.turns.turn import EvictionKind, SessionTurn, TurnEdit, TurnEviction
from acmserve.errors import IntegrityError
from tests.support.recorded_turns import EVENTS, Event, after_all, answered, receipt

FOLD = TurnEdit("fold", ("f1a2b3",), 40, "caller")
EVICTION = TurnEviction(EvictionKind.BUDGET, "recency", 300, {"remove": 300})


@pytest.fixture(params=[(512, 256 * 1024), (3, 256 * 1024), (512, 900)], ids=["wide", "few turns", "few bytes"])
def bounds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    monkeypatch.setattr(module, "MAX_TURNS", request.param[0])
    monkeypatch.setattr(module, "MAX_BYTES", request.param[1])
    return request.param  # type: ignore[no-any-return]


@pytest.mark.usefixtures("bounds")
def test_totals_are_the_sums_of_all_that_was_recorded() -> None:
    @given(EVENTS)
    def check(events: Sequence[Event]) -> None:
        history = after_all(events)
        history.check_integrity()
        turns = [event for event in events if isinstance(event, SessionTurn)]
        receipts = [turn.receipt for turn in turns if turn.receipt is not None]
        evictions = [event for event in events if isinstance(event, TurnEviction)]
        expected = {name: sum(receipt[name] for receipt in receipts) for name in RECEIPT_COUNTS}
        expected |= {
            "turns": len(turns),
            "turns_without_receipt": len(turns) - len(receipts),
            "output_tokens": sum(turn.output_tokens for turn in turns),
            "evicted_tokens": sum(eviction.num_tokens for eviction in evictions),
            "evictions": len(evictions),
            "edits": sum(isinstance(event, TurnEdit) for event in events),
            "fallbacks": sum(receipt["fallback_reason"] is not None for receipt in receipts),
            "background_tokens": sum(event for event in events if isinstance(event, int)),
        }
        assert history.totals.as_dict() == expected

    check()


@pytest.mark.usefixtures("bounds")
def test_what_is_left_are_the_newest_turns() -> None:
    @given(EVENTS)
    def check(events: Sequence[Event]) -> None:
        start = max((at + 1 for at, event in enumerate(events) if event is None), default=0)
        taken = [event for event in events[start:] if isinstance(event, SessionTurn)]
        left = after_all(events).turns
        num_left = len(left)
        assert num_left <= module.MAX_TURNS
        assert bool(num_left) == bool(taken)
        assert [replace(turn, index=0, edits=(), evictions=()) for turn in left] == taken[len(taken) - num_left :]

    check()


def test_the_next_turn_names_what_was_noted_and_the_one_behind_it_nothing() -> None:
    history = after_all([FOLD, EVICTION, answered(), answered()])
    assert [(turn.index, turn.edits, turn.evictions) for turn in history.turns] == [
        (0, (FOLD,), (EVICTION,)),
        (1, (), ()),
    ]
    assert (history.edits, history.evictions) == ((), ())


def test_of_very_many_notes_the_last_are_named_and_all_are_counted() -> None:
    history = after_all([*([FOLD] * MAX_NOTES), replace(FOLD, kind="restore"), *([EVICTION] * (MAX_NOTES + 9))])
    assert (len(history.edits), history.edits[-1].kind) == (MAX_NOTES, "restore")
    assert (history.totals.edits, history.totals.evictions) == (MAX_NOTES + 1, MAX_NOTES + 9)
    assert history.totals.evicted_tokens == (MAX_NOTES + 9) * 300


@given(st.integers(-1, 12), st.integers(1, 12))
def test_pages_follow_each_other(after: int, limit: int) -> None:
    history = after_all([answered(), None, *[answered()] * 9])
    expected = [index for index in range(1, 10) if index > after][:limit]
    assert [turn.index for turn in history.page(after, limit)] == expected
    assert NO_TURNS.page(after, limit) == []


HISTORY = after_all([answered(receipt=receipt(3, 4, 5))] * 3)


@pytest.mark.parametrize(
    "broken",
    [
        replace(HISTORY, turns=HISTORY.turns[:-1], sizes=HISTORY.sizes[:-1]),
        replace(HISTORY, turns=HISTORY.turns[::-1]),
        replace(HISTORY, sizes=(1, 2, 3)),
        replace(HISTORY, totals=replace(HISTORY.totals, moved_tokens=13)),
        replace(HISTORY, totals=replace(HISTORY.totals, evicted_tokens=-1)),
        TurnHistory(TurnTotals(turns=2), HISTORY.turns, sizes=HISTORY.sizes),
    ],
    ids=["missing", "order", "sizes", "parts", "negative", "uncounted"],
)
def test_damage_is_found(broken: TurnHistory) -> None:
    HISTORY.check_integrity()
    with pytest.raises(IntegrityError):
        broken.check_integrity()


def test_too_many_turns_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TURNS", 2)
    with pytest.raises(IntegrityError, match="above the bounds"):
        HISTORY.check_integrity()
