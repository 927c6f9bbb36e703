"""The trajectory of a query as the Distiller reads it, cut to a size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from acmserve.context.maps.trajectory import MAX_MESSAGE_CHARS, cut_middle, fit, last_query, question_of, trajectory
from tests.support.context.maps import WordTokenizer

CALL = {"id": "c", "function": {"name": "grep", "arguments": '{"path": "log"}'}}


def test_the_last_query_is_told_with_thoughts_calls_and_results() -> None:
    messages = [
        {"role": "user", "content": "Old?"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": [{"type": "text", "text": "How many?"}]},
        {"role": "assistant", "content": None, "reasoning_content": "I look.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "388"},
        {"role": "assistant", "content": "It is 388."},
    ]
    told = trajectory(last_query(messages))
    assert told.split("\n\n") == [
        "[user]\nHow many?",
        '[assistant]\nI look.\ncalls grep({"path": "log"})',
        "[tool]\n388",
        "[assistant]\nIt is 388.",
    ]
    assert question_of(last_query(messages)) == "How many?"


def test_odd_messages_are_no_error() -> None:
    messages = [{"role": "assistant", "tool_calls": [3, {"function": None}, {"function": {"arguments": {"a": 1}}}]}]
    assert trajectory(last_query(messages)) == '[assistant]\ncalls None({"a": 1})'
    assert question_of([]) == ""


@given(st.integers(0, 3 * MAX_MESSAGE_CHARS))
def test_a_long_message_loses_its_middle(num_chars: int) -> None:
    text = "".join(chr(97 + index % 26) for index in range(num_chars))
    cut = cut_middle(text)
    assert len(cut) <= MAX_MESSAGE_CHARS + 40
    assert (cut == text) == (num_chars <= MAX_MESSAGE_CHARS)
    assert cut[:100] == text[:100]
    assert cut[-100:] == text[-100:]


@given(st.integers(0, 300), st.integers(4, 100))
def test_a_trajectory_is_cut_to_its_tokens(num_words: int, max_tokens: int) -> None:
    text = " ".join(f"w{number}" for number in range(num_words))
    cut = fit(text, max_tokens, WordTokenizer())
    assert len(WordTokenizer().starts(cut)) <= max_tokens + 7
    assert (cut == text) == (num_words <= max_tokens)
    assert cut.startswith(text[:2])
    assert cut.endswith(text[-2:])
