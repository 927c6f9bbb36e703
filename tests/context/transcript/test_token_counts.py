"""The token ledger: what is counted, that old messages are not counted again, and that the sums stay true."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.context.transcript.message import Message
from acmserve.context.transcript.token_counts import EntrySize, TokenCounts
from tests.support.context.annotated import Story, count, histories, token_counts_of


class Counter:
    """Counts words, and how many it was asked for."""

    def __init__(self) -> None:
        self.num_words = 0

    def __call__(self, text: str) -> int:
        self.num_words += count(text)
        return count(text)


def test_the_parts_of_a_message() -> None:
    messages = Story().step(("grep", "a b c"), text="Look there .", reasoning="So be it .").messages
    token_counts = token_counts_of(messages)
    assert token_counts.size(2) == EntrySize(overhead=2, text=3, reasoning=4, calls=(3 + 1 + 4,))
    assert token_counts.size(3) == EntrySize(overhead=2, text=3)
    assert token_counts.size(2).total == 17
    assert token_counts.num_tokens == 7 + (2 + 3) + (2 + 3) + 17 + 5
    assert token_counts.omittable_between(0, 4) == 22


def test_thinking_parts_are_reasoning_and_objects_are_counted_as_written() -> None:
    call = {"id": "1", "function": {"name": "grep", "arguments": {"path": "x"}}}
    content = [{"type": "thinking", "thinking": "a b", "signature": "z z z"}, {"type": "text", "text": "c"}]
    token_counts = token_counts_of([{"role": "assistant", "content": content, "tool_calls": [call]}])
    assert token_counts.size(0) == EntrySize(overhead=2, text=1, reasoning=2, calls=(3 + 1 + 2,))


def test_a_turn_counts_its_own_messages_only() -> None:
    counter = Counter()
    token_counts = TokenCounts(counter)
    story = Story()
    for _ in range(400):
        story.step(("read", "w " * 250), text="Next .")
    token_counts.extend(story.messages)
    assert token_counts.num_tokens > 100_000
    before = counter.num_words
    story.step(("read", "w " * 10), text="And this .").user()
    token_counts.extend(story.messages[len(token_counts) :])
    assert token_counts.num_tokens > 100_000
    assert counter.num_words - before < 30


def test_a_message_that_changed_is_counted_again_alone() -> None:
    messages = Story().step(("read", "w " * 50)).user().messages
    token_counts = token_counts_of(messages)
    before = token_counts.num_tokens
    token_counts.recount(3, {**messages[3], "content": "[folded]"})
    assert token_counts.num_tokens == before - 49
    token_counts.check_integrity()


def test_it_is_calibrated_by_a_prompt_that_was_served() -> None:
    token_counts = token_counts_of(Story().messages)
    token_counts.calibrate(token_counts.num_tokens, 1000)
    assert token_counts.num_tokens == 1000
    token_counts.calibrate(900, 890)
    assert token_counts.num_tokens == 990


def test_our_own_lines_are_counted_once() -> None:
    counter = Counter()
    token_counts = TokenCounts(counter)
    assert [token_counts.text_tokens("[explored a: b]") for _ in range(3)] == [3, 3, 3]
    assert counter.num_words == 3


@given(histories(), st.data())
@settings(max_examples=40, deadline=None)
def test_growing_recounting_and_rewinding_keep_the_sums(messages: list[Message], data: st.DataObject) -> None:
    token_counts = token_counts_of([])
    start = data.draw(st.integers(0, len(messages)))
    token_counts.extend(messages[:start])
    assert token_counts.num_tokens == token_counts_of(messages[:start]).num_tokens
    token_counts.extend(messages[start:])
    token_counts.check_integrity()
    limit = data.draw(st.integers(0, len(messages)))
    token_counts.rewind(limit)
    assert token_counts.num_tokens == token_counts_of(messages[:limit]).num_tokens
    token_counts.extend(messages[limit:])
    if messages:
        entry = data.draw(st.integers(0, len(messages) - 1))
        token_counts.recount(entry, {"role": messages[entry]["role"], "content": "other words here"})
        token_counts.recount(entry, messages[entry])
    token_counts.check_integrity()
    fresh = token_counts_of(messages)
    for start in range(len(messages) + 1):
        assert token_counts.between(start, len(messages)) == fresh.between(start, len(messages))
        assert token_counts.omittable_between(start, len(messages)) == fresh.omittable_between(start, len(messages))
