"""Input that nobody should send: nothing but a refusal comes back, the state stays sound, and it does not take long."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.context.edits import fragments as edits
from acmserve.context.edits.cut import cut_messages
from acmserve.context.session.history import adopt, append_internal
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.tools.run import ToolCall, run_tool
from acmserve.context.tools.suites import SUITES, tool_names
from acmserve.errors import InvalidRequest
from tests.support.context.conversation import KEY, WORDS, bench, call, cut, done, refusal, state_of, user

MILLION = 10**6
SECONDS = 20.0
"""Processor time: far more than any of these takes, far less than a million characters times a thousand of anything."""

ODD_MESSAGES: list[dict[str, Any]] = [
    {},
    {"role": None},
    {"role": ["user"], "content": "x"},
    {"role": "user"},
    {"role": "user", "content": 5},
    {"role": "user", "content": True},
    {"role": "user", "content": {"text": "x"}},
    {"role": "user", "content": [None, 5, [], {}, {"text": None}, {"text": 5}, {"text": ""}, ["text"], "", "x"]},
    {"role": "user", "content": [{"type": "text", "text": "word " * 50}, {"type": "text", "text": "word " * 50}]},
    {"role": "assistant", "tool_calls": 5},
    {"role": "assistant", "tool_calls": "call"},
    {"role": "assistant", "tool_calls": {"id": "c"}},
    {"role": "assistant", "tool_calls": [None, 5, "call", [], {}]},
    {"role": "assistant", "tool_calls": [{"id": ["c"], "function": {"name": "search_context"}}]},
    {"role": "assistant", "tool_calls": [{"id": "c", "function": None}, {"id": "c", "function": {"name": ["x"]}}]},
    {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "search_context", "arguments": "[" * 5000}}]},
    {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "x", "arguments": {"a": float("nan")}}}]},
    {"role": "tool", "tool_call_id": ["c"], "content": "word"},
    {"role": "tool", "tool_call_id": {"c": 1}, "content": "word"},
    {"role": "user", "content": "nul \x00 and \x7f and \ufffe and word"},
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(
    st.sampled_from(
        ["start_marker", "end_marker", "num_fragments", "role", "fragment_id", "focus", "query", "search_id"]
    )
    | st.text(max_size=4),
    JSON | st.sampled_from(["word", "f9e375", "s9e375", "user", "all", 10**5000, "\ud800", 2**80, b"bytes"]),
    max_size=5,
)


def odd_state() -> SessionState:
    state = state_of(*ODD_MESSAGES, user("word " * 200))
    state = append_internal(state, [{"role": "tool", "tool_call_id": 5, "content": [1, "word"]}])
    state = cut_messages(state, len(ODD_MESSAGES), len(ODD_MESSAGES) + 1, WORDS).state
    state = edits.fold(state, "f9e375", "sculptor", WORDS)
    return call(state, "search_context", query="word", role="all").state


def test_messages_of_any_shape_are_rendered_as_they_came() -> None:
    state = state_of(*ODD_MESSAGES)
    assert all(shown is sent for shown, sent in zip(render(state), ODD_MESSAGES, strict=True))
    assert adopt(state, ODD_MESSAGES).num_known == len(ODD_MESSAGES)
    cut_all = cut_messages(state, 0, len(ODD_MESSAGES), WORDS).state
    hidden = edits.fold(cut_all, "f9e375", "sculptor", WORDS)
    hidden.check_integrity()
    assert len(render(hidden)) == len(ODD_MESSAGES)
    assert all(shown is sent for shown, sent in zip(render(edits.restore_all(hidden)), ODD_MESSAGES, strict=True))
    edits.redact(cut_all, "f9e375").check_integrity()


@given(
    st.sampled_from([(suite, name) for suite in SUITES for name in tool_names(suite)]),
    ARGUMENTS | JSON | st.text(max_size=20),
)
def test_no_arguments_make_a_tool_raise(tool: tuple[str, str], arguments: Any) -> None:
    suite, name = tool
    state = odd_state()
    outcome = run_tool(state, ToolCall(name, arguments), bench(suite))
    outcome.state.check_integrity()
    if outcome.error is not None:
        refusal(state, outcome)
        assert len(outcome.result) < 1000
    outcome.result.encode()


@given(st.lists(st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "name", "x"]), JSON), max_size=3))
def test_no_history_makes_adopt_raise_anything_else(messages: list[Any]) -> None:
    try:
        state = adopt(SessionState(digest_key=KEY), messages).state
    except InvalidRequest:
        with pytest.raises(InvalidRequest, match=r"^messages\[[012]\]: (is not JSON|has half of a surrogate pair)"):
            adopt(SessionState(), messages)
        return
    state.check_integrity()
    assert all(shown is sent for shown, sent in zip(render(state), messages, strict=True))
    outcome = call(state, "search_context", query="a", role="all")
    assert outcome.error is None
    assert adopt(state, messages).num_known == len(messages)


@pytest.mark.parametrize("text", ["a" * MILLION, "a\n" * (MILLION // 2), "ab " * (MILLION // 3), "\n" * MILLION])
def test_a_million_characters(text: str) -> None:
    begin = time.thread_time()
    state = state_of(user(text))
    for arguments in (
        {"start_marker": text[0] + text[1], "end_marker": text[-2:], "num_fragments": 20},
        {"start_marker": "a", "end_marker": "b"},
        {"start_marker": text, "end_marker": text},
        {"start_marker": "x" * 100_000, "end_marker": "a" * 100_000},
        {"start_marker": "a" * 99_999 + "b", "end_marker": "a"},
    ):
        outcome = call(state, "fragment_context", **arguments)
        outcome.state.check_integrity()
        assert len(outcome.result) < 5000
    for query in ("a", "A", "a" * 100_000, "A" * 100_000, text, text.upper() + "x", "a" * 99_999 + "b"):
        found = call(state, "search_context", query=query, max_results=50)
        assert found.error is None
        assert len(found.result) <= 50 * (2 * 200 + len(query) + 100)
    assert time.thread_time() - begin < SECONDS


def test_thousands_of_pieces_and_fragments() -> None:
    begin = time.thread_time()
    state = state_of(*(user([{"type": "text", "text": f"piece {i}{' word' * 20}"}] * 50) for i in range(200)))
    state, _ = cut(state, "piece 0", "piece 150 word", num=20)
    state = done(call(state, "fold_fragment", fragment_id=state.fragments[3].fragment_id))
    state, made = cut(state, "piece 0", "piece 199", num=20)
    assert 15 < len(made) <= 21
    assert time.thread_time() - begin < SECONDS


def test_a_folded_million_is_searched_for_a_marker_in_no_time() -> None:
    begin = time.thread_time()
    state = state_of(user("a " * (MILLION // 2)), user("a"))
    state, ids = cut(state, "a", " a", num=1)
    assert len(ids) == 1
    state = edits.restore_all(state)
    state = edits.fold(cut_messages(state, 0, 1, WORDS).state, "f3c6ea", "sculptor", WORDS)
    outcome = call(state, "fragment_context", start_marker="a", end_marker="a")
    assert outcome.error is None
    assert call(state, "fragment_context", start_marker="a a", end_marker="a").error is not None
    assert time.thread_time() - begin < SECONDS


def test_nul_characters_of_the_client_are_its_own() -> None:
    text = "\x00\x00a\x00b\x00" * 50
    state = state_of(user(f"start {text} end"))
    state, [fragment_id] = cut(state, "start", "end")
    folded = done(call(state, "fold_fragment", fragment_id=fragment_id))
    assert render(done(call(folded, "restore_fragment", fragment_id=fragment_id))) == [user(f"start {text} end")]
    found = call(folded, "search_context", query="\x00a\x00", max_results=1)
    assert "The first 1 of 50 matches for" in found.result
    assert "[redacted]" not in found.result
    assert "\x00\x00a\x00b\x00\x00\x00a" in found.result
