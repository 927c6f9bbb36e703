"""Thousands of calls of one message are taken out one by one, and each costs as much as the first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.context.transcript.message import Message
from acmserve.context.transcript.omission_editor import OmissionEditor
from acmserve.context.transcript.omissions import EMPTY, MessageOmissions, Omissions
from acmserve.context.transcript.omitted_tokens import shown_tokens
from acmserve.context.transcript.outline import TEXT, Outline, Use
from acmserve.context.transcript.parts import read_parts
from acmserve.context.transcript.token_counts import TokenCounts
from tests.support.context.annotated import Story, count, token_counts_of
from tests.support.operations import growth

SIZE, FACTOR, MOST = 50, 4, 5.5
ENTRY = 2
"""The message that has all the calls."""


class NaiveEditor(OmissionEditor):
    """The rule as it was first written: all of a message is weighed and copied for each of its calls."""

    def has_lost(self, use: Use) -> bool:
        return self.of(use.entry).has_lost(use.number)

    def drop_calls(self, uses: Iterable[Use]) -> None:
        for use in uses:
            kept = self.of(use.entry)
            if use.number in kept.calls:
                continue
            for result in self._lines[use.entry].results[use.number]:
                self.num_tokens -= self._weight_of(result, kept, use.number)
                self._gone.add(result)
            self._set(use.entry, replace(kept, calls=kept.calls | {use.number}))
            self.num_uses += 1

    def clear_result(self, use: Use, inputs: bool) -> None:
        kept, line, is_text = self.of(use.entry), self._lines[use.entry], use.number == TEXT
        results = line.results_of(use.number)
        if not results or (kept.text if is_text else use.number in kept.calls):
            return
        emptied = kept.inputs | {use.number} if inputs and not is_text else kept.inputs
        new = replace(kept, cleared=kept.cleared | {use.number}, inputs=emptied)
        if new == kept:
            return
        for result in results:
            self.num_tokens += self._weight_of(result, new, use.number) - self._weight_of(result, kept, use.number)
        self._set(use.entry, new)
        self.num_uses += use.number not in kept.cleared

    def add_note(self, entry: int, note: str) -> None:
        kept = self.of(entry)
        self._set(entry, replace(kept, notes=(*kept.notes, note)))

    def _weight_of(self, result: int, kept: MessageOmissions, number: int) -> int:
        size = self._sizes[result]
        is_cleared = number in kept.cleared
        return size.overhead + self._token_counts.placeholder_tokens() if is_cleared else size.total


def talk() -> list[Message]:
    """A message of four calls, one with two results and one with none, a text with an observation, and two steps."""
    calls = [(name, "found it here") for name in ("grep", "read", "bash")]
    story = Story().step(*calls, text="Look .", reasoning="Hm .")
    more: list[Any] = [*story.messages[ENTRY]["tool_calls"], {**story.messages[ENTRY]["tool_calls"][0], "id": "late"}]
    story.messages[ENTRY] = {**story.messages[ENTRY], "tool_calls": more}
    story.messages.append({"role": "tool", "tool_call_id": "call_1", "content": "found it again , twice"})
    story.say("Run ls .", reasoning="So .").user("a b c d e f")
    story.step(("edit", "done")).user().step(("read", "much " * 9), ("edit", "ok"), text="And .").say("")
    return story.messages


TALK, OBSERVED = talk(), 8
USES = [*Outline(TALK, {OBSERVED}).uses(), Use(OBSERVED - 1, TEXT)]
CALLS = [use for use in USES if use.number != TEXT]
ENTRIES = [*sorted({use.entry for use in USES}), len(TALK) - 1]
STEPS = st.lists(
    st.tuples(st.just("drop_calls"), st.tuples(st.lists(st.sampled_from(CALLS), max_size=4)))
    | st.tuples(st.just("clear_result"), st.tuples(st.sampled_from(USES), st.booleans()))
    | st.tuples(st.sampled_from(["strip_reasoning", "drop_text", "drop_step"]), st.tuples(st.sampled_from(ENTRIES)))
    | st.tuples(st.sampled_from(["drop_notes", "drop_lines"]), st.tuples(st.sampled_from(ENTRIES)))
    | st.tuples(st.just("add_note"), st.tuples(st.sampled_from(ENTRIES), st.sampled_from(["a b", "c"])))
    | st.tuples(st.just("set_summary"), st.tuples(st.just(ENTRY), st.just("so far"), st.just(9))),
    max_size=14,
)


def told(editor: OmissionEditor) -> tuple[object, ...]:
    """All that an editor says."""
    numbers = (editor.num_tokens, editor.num_operations, editor.num_uses, editor.num_reasoning, editor.first_entry)
    return (*numbers, editor.noted(), [editor.has_lost(use) for use in USES])


def counts_of_talk() -> TokenCounts:
    counts = TokenCounts(count, message_overhead=2, call_overhead=3, base_tokens=7)
    counts.extend_read(read_parts(TALK, {OBSERVED}))
    return counts


def editor_of(kind: type[OmissionEditor], before: Omissions) -> OmissionEditor:
    return kind(Outline(TALK, {OBSERVED}), counts_of_talk(), before)


@given(st.lists(STEPS, min_size=1, max_size=3))
def test_it_takes_out_what_the_rule_says(rounds: list[list[tuple[str, tuple[Any, ...]]]]) -> None:
    """Each round begins with what the one before it has left."""
    before = EMPTY
    for steps in rounds:
        fast, naive = editor_of(OmissionEditor, before), editor_of(NaiveEditor, before)
        for name, arguments in steps:
            for editor in (fast, naive):
                getattr(editor, name)(*arguments)
            assert told(fast) == told(naive)
        after = fast.omissions()
        assert after == naive.omissions()
        assert (after is before) == (naive.omissions() is before)
        assert [fast.of(entry) for entry in ENTRIES] == [naive.of(entry) for entry in ENTRIES]
        assert fast.num_tokens == shown_tokens(Outline(TALK, {OBSERVED}), counts_of_talk(), after)
        before = after


def drop_one_by_one(editor: OmissionEditor, uses: list[Use]) -> None:
    for use in uses:
        editor.drop_call(use)
        assert editor.has_lost(use)


def clear_one_by_one(editor: OmissionEditor, uses: list[Use]) -> None:
    for use in uses:
        editor.clear_result(use, inputs=True)


def describe_each(editor: OmissionEditor, uses: list[Use]) -> None:
    for use in uses:
        editor.drop_call(use)
        editor.add_note(use.entry, f"note {use.number}")


def drop_what_is_gone(editor: OmissionEditor, uses: list[Use]) -> None:
    editor.drop_step(ENTRY)
    drop_one_by_one(editor, uses)


WAYS = [drop_one_by_one, clear_one_by_one, describe_each, drop_what_is_gone, OmissionEditor.drop_calls]


def edited(num: int, way: Callable[[OmissionEditor, list[Use]], None]) -> Callable[[], object]:
    messages = Story().step(*[("grep", "found it")] * num, text="Look .").say("So .").messages
    outline, counts = Outline(messages), token_counts_of(messages)

    def run() -> object:
        editor = OmissionEditor(outline, counts, EMPTY)
        way(editor, list(outline.uses()))
        return editor.omissions()

    return run


@pytest.mark.parametrize("way", WAYS)
def test_thousands_of_calls_cost_each_as_much(way: Callable[[OmissionEditor, list[Use]], None]) -> None:
    assert growth(lambda num: edited(num, way), SIZE, FACTOR) < MOST


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_copied_for_each_call(
    way: Callable[[OmissionEditor, list[Use]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies are made in C, so their items are counted."""
    make, num_copied = MessageOmissions.__init__, 0

    def counted(self: MessageOmissions, *args: Any, **fields: Any) -> None:
        nonlocal num_copied
        make(self, *args, **fields)
        num_copied += len(self.calls) + len(self.cleared) + len(self.inputs) + len(self.notes)

    monkeypatch.setattr(MessageOmissions, "__init__", counted)
    edited(SIZE, way)()
    assert num_copied <= 4 * SIZE
