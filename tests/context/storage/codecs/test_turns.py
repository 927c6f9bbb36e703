"""The turns of a session become a ring of rows, come back equal, and damage is named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.context.session.turns import history as bounds
from acmserve.context.session.turns.history import NO_TURNS, TurnHistory
from acmserve.context.session.turns.turn import EvictionKind, TurnEdit, TurnEviction
from acmserve.context.storage.codecs import turns as codec
from acmserve.context.storage.codecs.rows import pack, unpack
from acmserve.context.storage.codecs.turns import num_turn_rows, turn_rows, turns_from
from acmserve.errors import IntegrityError
from tests.support.recorded_turns import EVENTS, Event, after, after_all, answered


@pytest.fixture
def short_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_TURNS", 4)
    monkeypatch.setattr(codec, "MAX_TURNS", 4)
    monkeypatch.setattr(bounds, "MAX_BYTES", 2_000)


def written(table: dict[int, bytes], old: TurnHistory, new: TurnHistory) -> None:
    """What the file does with the rows of a save."""
    table |= {position: pack(value) for position, value in turn_rows(old, new).items()}
    assert sorted(table) == list(range(num_turn_rows(new)))


def read(table: dict[int, bytes]) -> TurnHistory:
    return turns_from([unpack(table[position]) for position in sorted(table)])


@pytest.mark.usefixtures("short_ring")
def test_every_save_leaves_the_history_in_the_rows() -> None:
    @given(EVENTS, st.integers(1, 9))
    def check(events: Sequence[Event], saved_every: int) -> None:
        table: dict[int, bytes] = {}
        saved = history = NO_TURNS
        for number, event in enumerate(events):
            history = after(event, history)
            if number % saved_every == 0:
                written(table, saved, history)
                saved = history
                assert read(table) == history
        whole: dict[int, bytes] = {}
        written(whole, NO_TURNS, history)
        assert read(whole) == history

    check()


def test_a_turn_writes_two_rows() -> None:
    history = after_all([answered()] * 5)
    assert sorted(turn_rows(history, history.taken(answered()))) == [0, 6]


HISTORY = after_all(
    [
        TurnEdit("fold", ("f1a2b3",), 40, "caller"),
        TurnEviction(EvictionKind.CALLER, "cwl", 3),
        answered(),
        TurnEdit("fold", ("f1a2b3",), 40, "caller"),
    ]
)


@pytest.mark.parametrize(
    ("row", "path", "value"),
    [
        (0, ["version"], 2),
        (0, ["totals", "turns"], 7),
        (0, ["totals", "turns"], True),
        (0, ["edits", 0, "fragment_ids"], [1]),
        (1, ["receipt"], []),
        (1, ["end"], "lost"),
        (1, ["purpose"], None),
        (1, ["evictions", 0, "kind"], "other"),
        (1, ["index"], 5),
        (1, ["ttft_s"], "0.5"),
    ],
)
def test_damage_is_named(row: int, path: list[Any], value: object) -> None:
    rows = [json.loads(json.dumps(value)) for _, value in sorted(turn_rows(NO_TURNS, HISTORY).items())]
    assert turns_from(rows) == HISTORY
    at = rows[row]
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    with pytest.raises((ValueError, TypeError, KeyError, IntegrityError)):
        turns_from(rows)


def test_rows_of_an_earlier_time_lack_what_was_added_since() -> None:
    history = after_all([answered()])
    head, turn = (unpack(pack(turn_rows(NO_TURNS, history)[position])) for position in range(2))
    del head["totals"]["background_tokens"], head["totals"]["loaded_tokens"], turn["branch"]
    assert turns_from([head, turn]) == history
    del head["totals"]["fallbacks"]
    with pytest.raises(KeyError):
        turns_from([head, turn])
