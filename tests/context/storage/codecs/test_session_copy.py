"""A copy that somebody made up brings no number that outgrows the file, and no bytes that nobody counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from acmserve.context.session.branches.parent import Parent
from acmserve.context.session.budget import Budget
from acmserve.context.session.state import MAX_SEARCH_HITS, SearchHit, SessionState
from acmserve.context.session.turns.history import NO_TURNS, TurnHistory
from acmserve.context.session.turns.turn import EvictionKind, SessionTurn, TurnEnd, TurnEviction, TurnOrigin
from acmserve.context.storage.codecs.session_copy import (
    MAX_COUNT,
    MAX_UNCOUNTED_BYTES,
    SessionCopy,
    copy_from,
    copy_value,
)
from acmserve.context.tools.search.exact import search_exact
from acmserve.context.transcript.message import Message, Place
from acmserve.context.transcript.omissions import MessageOmissions, Omissions
from acmserve.errors import InvalidRequest
from tests.support.context.conversation import assistant, state_of, user
from tests.support.context.states import session_states

RECEIPT = {"prompt_tokens": 9, "kept_tokens": 0, "moved_tokens": 0, "computed_tokens": 9, "precomputed_tokens": 0}
RECEIPT |= {"loaded_tokens": 0, "repaired_tokens": 0}
EVICTION = TurnEviction(EvictionKind.BUDGET, "cwl", 5, {"remove": 5})
TURN = SessionTurn(
    1.5, TurnOrigin(), "r", {**RECEIPT, "fallback_reason": None}, 9, 1, None, None, 0.5, TurnEnd.ANSWERED
)
TURNS = NO_TURNS.noted(evictions=[EVICTION]).taken(TURN).noted(evictions=[EVICTION])


def copied(state: SessionState, turns: TurnHistory = NO_TURNS) -> dict[str, Any]:
    """The body of an export, as it arrives."""
    value: dict[str, Any] = json.loads(json.dumps(copy_value(SessionCopy("s", "sculptor", 1.0, state, turns))))
    return value


def arrived(value: dict[str, Any]) -> SessionCopy:
    return copy_from(value, "sessions[0]")


def refused(value: dict[str, Any]) -> str:
    with pytest.raises(InvalidRequest) as caught:
        arrived(value)
    return str(caught.value)


def numbers(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where integers stand in a value."""
    if type(value) is int:
        return [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, item in items for found in numbers(item, (*path, key))]


def exchanged(value: Any, path: tuple[Any, ...], new: object) -> Any:
    copy = json.loads(json.dumps(value))
    at = copy
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = new
    return copy


def busy() -> SessionState:
    """A session that has a count of every kind, and of the client's own numbers in places that are free."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"n": 2**60, "t": "word " * 20}}}
    messages = [user("x"), {"role": "assistant", "content": "So.", "tool_calls": [call], "own": 2**60}]
    state = state_of(*messages, {"role": "tool", "tool_call_id": "c", "content": "ok"}, assistant("Done."))
    state = search_exact(state, "word", "all", 3, 10).state
    omissions = Omissions(((1, 3),), {3: MessageOmissions(text=True, summary="Said.", summary_end=3)})
    budget = Budget(100, 50, "clear_tool_uses", {"keep": 2**60})
    return replace(state, omissions=omissions, budget=budget, parent=Parent("p", "0", "d", "t", 1, 1))


def test_no_number_of_a_copy_outgrows_what_files_and_other_readers_hold() -> None:
    """Each one by itself. What clients wrote in messages, and options of a budget, may be any number."""
    value = copied(busy(), TURNS)
    assert arrived(value).state == busy()
    num_checked = 0
    for key in ("state", "turns"):
        read = json.loads(value[key])
        for path in numbers(read):
            if {"message", "budget", "version"} & {*path}:
                continue
            for new in (2**53 + 1, 2**62, -(2**62)):
                assert f"sessions[0].{key}" in refused({**value, key: json.dumps(exchanged(read, path, new))}), path
            num_checked += 1
    assert num_checked > 50


def test_the_tokens_of_a_budget_are_bounded() -> None:
    large = replace(busy(), budget=Budget(2**60))
    assert refused(copied(large)).startswith(f"sessions[0].state: has 'max_tokens' {2**60}, the most is")


@pytest.mark.parametrize("name", ["num_ids", "num_turns"])
def test_the_largest_count_is_taken(name: str) -> None:
    value = copied(busy())
    state = exchanged(json.loads(value["state"]), (name,), MAX_COUNT)
    assert getattr(arrived({**value, "state": json.dumps(state)}).state, name) == MAX_COUNT
    state[name] += 1
    told = refused({**value, "state": json.dumps(state)})
    assert told == (
        f"sessions[0].state: has '{name}' {MAX_COUNT + 1}, the most is {MAX_COUNT:,}. Export the session again."
    )


def with_hits(num: int) -> Callable[[SessionState], SessionState]:
    return lambda state: replace(state, hits=tuple(SearchHit(f"s{n:05x}", Place(0), 0, 1) for n in range(num)))


LARGE = "x" * (MAX_UNCOUNTED_BYTES + 10_000)
UNCOUNTED: dict[str, tuple[Callable[[SessionState], SessionState], str]] = {
    "hits": (with_hits(MAX_SEARCH_HITS + 1), "has 1,001 hits, the most is 1,000."),
    "an id": (lambda s: replace(s, hits=(SearchHit(LARGE, Place(0), 0, 1),)), "bytes of omissions, branches and hits"),
    "a note": (
        lambda s: replace(s, omissions=Omissions((), {0: MessageOmissions(notes=(LARGE,))})),
        "bytes of omissions",
    ),
    "a summary": (
        lambda s: replace(s, omissions=Omissions((), {0: MessageOmissions(summary=LARGE)})),
        "bytes of omiss",
    ),
    "calls": (
        lambda s: replace(s, omissions=Omissions((), {0: MessageOmissions(calls=frozenset(range(200_000)))})),
        "bytes of omissions",
    ),
    "a task": (lambda s: replace(s, parent=Parent("p", "0", "d", LARGE, 0, 0)), "bytes of omissions, branches"),
}


@pytest.mark.parametrize("name", UNCOUNTED)
def test_what_no_store_counts_is_bounded(name: str) -> None:
    """The same beside as much that is counted is what a session of an own server may be."""
    change, told = UNCOUNTED[name]
    assert told in refused(copied(change(state_of(user("x")))))
    if name != "hits":
        arrived(copied(change(state_of(user(LARGE)))))


@pytest.mark.parametrize("turns", ["null", "0", "false", "{}", '"x"'])
def test_turns_that_are_no_list_are_damaged(turns: str) -> None:
    assert "sessions[0].turns: is damaged" in refused({**copied(busy()), "turns": turns})


def long_paths(key_chars: int, num_keys: int, is_text: bool) -> Message:
    """Many arguments below a long name."""
    names = {"n" * key_chars: {f"k{number:04d}": f"word {number} " + "other " * 15 for number in range(num_keys)}}
    arguments = json.dumps(names) if is_text else names
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.mark.parametrize("is_text", [True, False])
def test_an_own_session_with_long_paths_travels(is_text: bool) -> None:
    """All that a search shows is kept: a thousand places, each of which names the long argument."""
    state = state_of(
        user("x"), long_paths(12_000, 200, is_text), {"role": "tool", "tool_call_id": "c", "content": "ok"}
    )
    for _ in range(6):
        state = search_exact(state, "word", "all", 200, 10).state
    assert len(state.hits) == MAX_SEARCH_HITS
    assert len({hit.place for hit in state.hits}) == 200
    value = copied(state)
    assert len(value["state"]) > 10 * MAX_UNCOUNTED_BYTES
    copy = arrived(value)
    assert copy.num_bytes < 100_000
    assert copy.state == state
    steps = {id(hit.place.part.path[0]) for hit in copy.state.hits}  # type: ignore[union-attr]
    assert len(steps) == 1, "they are one text in memory"
    assert arrived(copied(copy.state)).state == state


@given(session_states())
def test_a_state_that_a_server_made_travels(state: SessionState) -> None:
    back = arrived(copied(state)).state
    assert (back.fragments, back.hits, back.omissions) == (state.fragments, state.hits, state.omissions)
