"""The trajectory of a query as the Distiller reads it, cut to a size."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from acmserve.context.maps.trajectory import (
    MAX_MESSAGE_CHARS,
    cut_middle,
    fit,
    keep,
    keep_message,
    last_query,
    question_of,
    tell,
    trajectory,
)
from acmserve.context.transcript.message import Message
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
    kept = [keep_message(message) for message in last_query(messages)]
    assert trajectory(kept).split("\n\n") == [
        "[user]\nHow many?",
        '[assistant]\nI look.\ncalls grep({"path": "log"})',
        "[tool]\n388",
        "[assistant]\nIt is 388.",
    ]
    assert question_of(kept) == "How many?"


def test_odd_messages_are_no_error() -> None:
    messages = [{"role": "assistant", "tool_calls": [3, {"function": None}, {"function": {"arguments": {"a": 1}}}]}]
    assert (
        trajectory([keep_message(message) for message in last_query(messages)]) == '[assistant]\ncalls None({"a": 1})'
    )
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


def calls(*spelled: str) -> list[Any]:
    return [{"id": "c", "type": "function", "function": {"name": "write", "arguments": one}} for one in spelled]


def numbered(num_chars: int) -> str:
    """A text in which each piece stands once."""
    return "".join(f"{number}," for number in range(num_chars // 4))[:num_chars]


SIZES = st.integers(0, 2 * MAX_MESSAGE_CHARS)


@given(st.lists(SIZES, max_size=4), SIZES, st.lists(SIZES, max_size=3), st.booleans())
def test_a_kept_message_tells_what_the_whole_one_told(
    contents: list[int], thought: int, spelled: list[int], is_list: bool
) -> None:
    """The whole text is what it says, in order. A copy of the middle of each length tells the same."""
    said = [numbered(num) for num in contents] if is_list else ["".join(numbered(num) for num in contents)]
    message: dict[str, Any] = {"role": "assistant", "reasoning": numbered(thought)}
    message["content"] = [{"type": "text", "text": text} for text in said] if is_list else said[0]
    message["content"] = [*message["content"], {"type": "image_url", "url": "x" * 99_999}] if is_list else said[0]
    message["tool_calls"] = calls(*map(numbered, spelled))
    whole = [numbered(thought), *filter(None, said)]
    whole += [f"calls write({numbered(num)})" for num in spelled]
    kept = keep_message(message)
    assert trajectory([kept]) == f"[assistant]\n{cut_middle(chr(10).join(whole))}"
    assert kept.num_chars < 12_000 + 500 * (1 + len(contents) + 2 * len(spelled)) + 100


@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=30), st.integers(40, 9_000))
def test_a_query_within_its_room_is_told_as_ever_and_one_beyond_it_by_both_ends(
    sizes: list[int], max_chars: int
) -> None:
    messages: list[Message] = [{"role": "user", "content": f"{n} {numbered(size)}"} for n, size in enumerate(sizes)]
    whole = trajectory([keep_message(message) for message in messages])
    query = keep(messages, max_chars)
    told = tell(query, 10**6, WordTokenizer())
    if len(whole) + 32 * len(messages) <= max_chars:
        assert told == whole
    start, _, end = told.partition("\n... ")
    assert whole.startswith(start)
    assert whole.endswith(end.partition(" characters left out ...\n")[2])
    assert len(told) <= max_chars + 2 * 3_100
    assert len(told) >= min(len(whole), max_chars - 32 * len(messages))


def test_beyond_its_room_one_gap_tells_how_much_is_missing() -> None:
    messages: list[Message] = [{"role": "user", "content": f"w{n} " * 50} for n in range(1_000)]
    told = tell(keep(messages, 4_000), 40, WordTokenizer())
    whole = trajectory([keep_message(message) for message in messages])
    assert told.count("left out") == 1
    start, _, rest = told.partition("\n... ")
    number, _, end = rest.partition(" characters left out ...\n")
    assert abs(int(number.replace(",", "")) - (len(whole) - len(start) - len(end))) <= 4
    assert whole.startswith(start)
    assert whole.endswith(end)
    assert len(WordTokenizer().starts(told)) <= 47


def test_small_messages_are_bounded_in_number() -> None:
    messages: list[Message] = [{"role": "tool", "content": ""}] * 50_000
    assert len(keep(messages, 32_000).messages) == 1_000
