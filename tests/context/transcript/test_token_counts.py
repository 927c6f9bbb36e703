"""The token ledger: what is counted, that old messages are not counted again, and that the sums stay true."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.context.transcript.message import Message
from acmserve.context.transcript.token_counts import EntrySize, TokenLedger
from tests.support.context.annotated import Story, count, histories, ledger_of


class Counter:
    """Counts words, and how many it was asked for."""

    def __init__(self) -> None:
        self.num_words = 0

    def __call__(self, text: str) -> int:
        self.num_words += count(text)
        return count(text)


def test_the_parts_of_a_message() -> None:
    messages = Story().step(("grep", "a b c"), text="Look there .", reasoning="So be it .").messages
    ledger = ledger_of(messages)
    assert ledger.size(2) == EntrySize(overhead=2, text=3, reasoning=4, calls=(3 + 1 + 4,))
    assert ledger.size(3) == EntrySize(overhead=2, text=3)
    assert ledger.size(2).total == 17
    assert ledger.num_tokens == 7 + (2 + 3) + (2 + 3) + 17 + 5
    assert ledger.sheddable_between(0, 4) == 22


def test_thinking_parts_are_reasoning_and_objects_are_counted_as_written() -> None:
    call = {"id": "1", "function": {"name": "grep", "arguments": {"path": "x"}}}
    content = [{"type": "thinking", "thinking": "a b", "signature": "z z z"}, {"type": "text", "text": "c"}]
    ledger = ledger_of([{"role": "assistant", "content": content, "tool_calls": [call]}])
    assert ledger.size(0) == EntrySize(overhead=2, text=1, reasoning=2, calls=(3 + 1 + 2,))


def test_a_turn_counts_its_own_messages_only() -> None:
    counter = Counter()
    ledger = TokenLedger(counter)
    story = Story()
    for _ in range(400):
        story.step(("read", "w " * 250), text="Next .")
    ledger.extend(story.messages)
    assert ledger.num_tokens > 100_000
    before = counter.num_words
    story.step(("read", "w " * 10), text="And this .").user()
    ledger.extend(story.messages[len(ledger) :])
    assert ledger.num_tokens > 100_000
    assert counter.num_words - before < 30


def test_a_message_that_changed_is_counted_again_alone() -> None:
    messages = Story().step(("read", "w " * 50)).user().messages
    ledger = ledger_of(messages)
    before = ledger.num_tokens
    ledger.recount(3, {**messages[3], "content": "[folded]"})
    assert ledger.num_tokens == before - 49
    ledger.check_integrity()


def test_it_is_calibrated_by_a_prompt_that_was_served() -> None:
    ledger = ledger_of(Story().messages)
    ledger.calibrate(ledger.num_tokens, 1000)
    assert ledger.num_tokens == 1000
    ledger.calibrate(900, 890)
    assert ledger.num_tokens == 990


def test_our_own_lines_are_counted_once() -> None:
    counter = Counter()
    ledger = TokenLedger(counter)
    assert [ledger.text_tokens("[explored a: b]") for _ in range(3)] == [3, 3, 3]
    assert counter.num_words == 3


@given(histories(), st.data())
@settings(max_examples=40, deadline=None)
def test_growing_recounting_and_rewinding_keep_the_sums(messages: list[Message], data: st.DataObject) -> None:
    ledger = ledger_of([])
    start = data.draw(st.integers(0, len(messages)))
    ledger.extend(messages[:start])
    assert ledger.num_tokens == ledger_of(messages[:start]).num_tokens
    ledger.extend(messages[start:])
    ledger.check_integrity()
    limit = data.draw(st.integers(0, len(messages)))
    ledger.rewind(limit)
    assert ledger.num_tokens == ledger_of(messages[:limit]).num_tokens
    ledger.extend(messages[limit:])
    if messages:
        entry = data.draw(st.integers(0, len(messages) - 1))
        ledger.recount(entry, {"role": messages[entry]["role"], "content": "other words here"})
        ledger.recount(entry, messages[entry])
    ledger.check_integrity()
    fresh = ledger_of(messages)
    for start in range(len(messages) + 1):
        assert ledger.between(start, len(messages)) == fresh.between(start, len(messages))
        assert ledger.sheddable_between(start, len(messages)) == fresh.sheddable_between(start, len(messages))
