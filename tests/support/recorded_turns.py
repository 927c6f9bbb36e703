"""Turns of a session as hypothesis makes them, and what happens to a history of them, one event after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from acmserve.context.session.turns.history import NO_TURNS, TurnHistory
from acmserve.context.session.turns.turn import (
    EvictionKind,
    SessionTurn,
    TurnEdit,
    TurnEnd,
    TurnEviction,
    TurnOrigin,
    TurnPurpose,
)

Event = SessionTurn | TurnEdit | TurnEviction | int | None
COUNTS = st.integers(0, 5_000)


def receipt(kept: int = 0, moved: int = 0, computed: int = 0, **more: Any) -> dict[str, Any]:
    """A receipt as the engine says it, without moves."""
    return {
        "fidelity": "exact",
        "prompt_tokens": kept + moved + computed,
        "kept_tokens": kept,
        "moved_tokens": moved,
        "computed_tokens": computed,
        "precomputed_tokens": 0,
        "loaded_tokens": 0,
        "repaired_tokens": 0,
        "chosen": None,
        "reason": None,
        "moves": [],
        "fallback_reason": None,
        "edit_boundaries": None,
        "transition_norm": None,
    } | more


RECEIPTS = st.builds(
    receipt,
    COUNTS,
    COUNTS,
    COUNTS,
    fallback_reason=st.sampled_from([None, "lora"]),
    precomputed_tokens=COUNTS,
    loaded_tokens=COUNTS,
)
EDITS = st.builds(
    TurnEdit,
    st.sampled_from(["fold", "redact"]),
    st.lists(st.sampled_from(["f1a2b3", "f9e375"]), max_size=2).map(tuple),
    st.integers(-500, 500),
    st.sampled_from(["model", "caller"]),
)
EVICTIONS = st.builds(
    TurnEviction,
    st.sampled_from(EvictionKind),
    st.sampled_from(["recency", "cwl"]),
    COUNTS,
    st.dictionaries(st.sampled_from(["remove", "clear_result"]), COUNTS),
)
TURNS = st.builds(
    SessionTurn,
    created_at=st.floats(0, 1e10),
    origin=st.builds(
        TurnOrigin,
        st.just("/v1/messages"),
        st.none() | st.integers(0, 9),
        st.sampled_from(TurnPurpose),
        st.none() | st.text(max_size=9),
    ),
    request_id=st.text(max_size=20),
    receipt=st.none() | RECEIPTS,
    prompt_tokens=COUNTS,
    output_tokens=COUNTS,
    budget_tokens=st.none() | COUNTS,
    first_token_seconds=st.none() | st.floats(0, 100),
    seconds=st.floats(0, 1e4),
    end=st.sampled_from(TurnEnd),
)
EVENTS = st.lists(TURNS | EDITS | EVICTIONS | COUNTS | st.none(), max_size=30)
"""What may happen. A number: a background request computed so many tokens.

None: the turns are dropped, since the session needs their room.
"""


def after(event: Event, history: TurnHistory) -> TurnHistory:
    """The history behind an event."""
    match event:
        case SessionTurn():
            return history.taken(event)
        case TurnEdit():
            return history.noted(edits=[event])
        case TurnEviction():
            return history.noted(evictions=[event])
        case int():
            return history.with_background(event)
        case None:
            return history.emptied()


def after_all(events: Sequence[Event], history: TurnHistory = NO_TURNS) -> TurnHistory:
    """The history behind events."""
    for event in events:
        history = after(event, history)
    return history


def answered(**more: Any) -> SessionTurn:
    """A turn that was answered."""
    given: dict[str, Any] = {
        "created_at": 1.0,
        "origin": TurnOrigin(),
        "request_id": "chatcmpl-1",
        "receipt": receipt(computed=7),
        "prompt_tokens": 7,
        "output_tokens": 2,
        "budget_tokens": None,
        "first_token_seconds": 0.5,
        "seconds": 1.0,
        "end": TurnEnd.ANSWERED,
    }
    return SessionTurn(**given | more)
