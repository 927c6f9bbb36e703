"""Messages of the user are taken out as the rule says, and thousands of them cost no more than each by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.context.transcript.message import Message
from acmserve.context.transcript.omission_editor import OmissionEditor
from acmserve.context.transcript.omissions import EMPTY, USERS_LEFT_OUT, MessageOmissions, Omissions
from acmserve.context.transcript.outline import Outline
from acmserve.context.transcript.token_counts import TokenCounts
from tests.support.context.annotated import count, token_counts_of
from tests.support.operations import growth

SIZE, FACTOR, MOST = 50, 4, 5.5


class NaiveEditor(OmissionEditor):
    """The rule as it was first written: all that is taken out is looked at for each message."""

    def drop_user(self, entry: int) -> None:
        if self.of(entry).text:
            return
        entries = {*self._before.entries, *self._changed}
        taken = [other for other in entries if self._lines[other].is_user and self.of(other).text]
        is_first = not any(other < entry for other in taken)
        for other in [other for other in taken if is_first and self.of(other).notes]:
            self._set(other, replace(self.of(other), notes=()))
        self._set(entry, MessageOmissions(text=True, notes=(USERS_LEFT_OUT,) if is_first else ()))


def talk(num_turns: int) -> list[Message]:
    messages: list[Message] = [{"role": "system", "content": "Mend it ."}]
    for number in range(num_turns):
        messages += [
            {"role": "user", "content": f"user {number} says this"},
            {"role": "assistant", "content": f"answer {number}"},
        ]
    return messages


def users(messages: list[Message]) -> list[int]:
    return [entry for entry, message in enumerate(messages) if message["role"] == "user"]


NUM_TURNS = 8
TALK = talk(NUM_TURNS)
KEPT = st.builds(
    MessageOmissions,
    text=st.booleans(),
    notes=st.lists(st.sampled_from(["a b", USERS_LEFT_OUT]), max_size=2).map(tuple),
).filter(lambda kept: kept != MessageOmissions())
BEFORE = st.dictionaries(st.integers(1, len(TALK) - 1), KEPT, max_size=6).map(lambda kept: Omissions((), kept))
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["drop_user", "drop_user", "drop_user", "add_note", "drop_notes"]), st.sampled_from(users(TALK))
    )
    | st.tuples(st.sampled_from(["drop_text", "add_note"]), st.integers(1, NUM_TURNS).map(lambda turn: 2 * turn)),
    max_size=20,
)


def told(editor: OmissionEditor, steps: list[tuple[str, int]]) -> list[object]:
    """All that an editor says, behind every step."""
    said: list[object] = []
    for name, entry in steps:
        arguments = (entry, "c d") if name == "add_note" else (entry,)
        getattr(editor, name)(*arguments)
        numbers = (editor.num_tokens, editor.num_operations, editor.num_uses, editor.num_reasoning, editor.first_entry)
        said += [numbers, editor.noted(), editor.omissions()]
    return said


@given(BEFORE, STEPS)
def test_it_takes_out_what_the_rule_says(before: Omissions, steps: list[tuple[str, int]]) -> None:
    outline = Outline(TALK)
    fast = OmissionEditor(outline, token_counts_of(TALK), before)
    naive = NaiveEditor(outline, token_counts_of(TALK), before)
    assert told(fast, steps) == told(naive, steps)


@pytest.mark.parametrize("oldest_first", [True, False])
@pytest.mark.parametrize("share_before", [0, 2])
def test_thousands_of_users_cost_each_as_much(oldest_first: bool, share_before: int) -> None:
    def work(num: int) -> Callable[[], object]:
        messages = talk(num)
        entries = users(messages)
        kept = {entry: MessageOmissions(text=True) for entry in entries[: num // share_before if share_before else 0]}
        outline, counts = Outline(messages), TokenCounts(count)
        counts.extend(messages)

        def run() -> None:
            editor = OmissionEditor(outline, counts, Omissions((), kept) if kept else EMPTY)
            for entry in entries if oldest_first else reversed(entries):
                editor.drop_user(entry)
            assert len(editor.omissions().entries) == num

        return run

    assert growth(work, SIZE, FACTOR) < MOST
