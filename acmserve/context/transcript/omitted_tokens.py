"""What a conversation weighs when parts of it are taken out. Agrees with `render_without`, message by message.

shown = all messages - ranges that are gone (running sums) + what is left of the entries that are cut (one by one)
"""

from __future__ import annotations

from dataclasses import replace

from acmserve.context.transcript.omissions import NOTHING, MessageOmissions, Omissions
from acmserve.context.transcript.outline import TEXT, Line, Outline
from acmserve.context.transcript.token_counts import EntrySize, TokenCounts


def is_left(line: Line, omissions: MessageOmissions) -> bool:
    """Whether anything of an assistant's message stays."""
    if omissions is NOTHING or omissions.notes or omissions.summary or (line.has_text and not omissions.text):
        return True
    return len(omissions.calls) < len(line.names)


def message_tokens(line: Line, size: EntrySize, omissions: MessageOmissions, token_counts: TokenCounts) -> int:
    """Tokens of what is left of an assistant's message."""
    if omissions is NOTHING:
        return size.total
    return _part_tokens(line, size, omissions, token_counts) if is_left(line, omissions) else 0


def _part_tokens(line: Line, size: EntrySize, omissions: MessageOmissions, token_counts: TokenCounts) -> int:
    """Tokens of the parts of a message that stay, and of its overhead."""
    written = (omissions.summary, *omissions.notes) if omissions.summary else omissions.notes
    notes = sum([token_counts.text_tokens(text) for text in written])
    if omissions.text and omissions.reasoning and len(omissions.calls) == len(size.calls):
        return size.overhead + notes
    calls = sum(
        [
            token_counts.cleared_call_tokens(line.names[index]) if index in omissions.inputs else num
            for index, num in enumerate(size.calls)
            if index not in omissions.calls
        ]
    )
    text = 0 if omissions.text else size.text
    reasoning = 0 if omissions.reasoning else size.reasoning
    return size.overhead + text + reasoning + calls + notes


def result_tokens(size: EntrySize, omissions: MessageOmissions, index: int, token_counts: TokenCounts) -> int:
    """Tokens of the result of call `index` (`TEXT`: of the text) of a message of which this is taken out."""
    if omissions.text if index == TEXT else index in omissions.calls:
        return 0
    return size.overhead + token_counts.placeholder_tokens() if index in omissions.cleared else size.total


class OpenMessage:
    """What is taken out of one message while more of it goes. Each call costs the same, however many went before.

    `calls`, `cleared` and `inputs` are those of the omissions. `num_tokens` and `is_left` are kept as the functions
    above tell them.
    """

    def __init__(self, line: Line, size: EntrySize, before: MessageOmissions, token_counts: TokenCounts) -> None:
        self._line, self._size, self._token_counts = line, size, token_counts
        self._before, self.is_changed = before, False
        self.has_lost_text, self.has_lost_reasoning = before.text, before.reasoning
        self.calls, self.cleared, self.inputs = set(before.calls), set(before.cleared), set(before.inputs)
        self._notes = list(before.notes)
        self._num_parts = size.total if before is NOTHING else _part_tokens(line, size, before, token_counts)
        self.is_left = before is NOTHING or is_left(line, before)
        self.num_tokens = self._num_parts if self.is_left else 0

    def drop_call(self, number: int) -> None:
        """Take out a call that is left."""
        self._num_parts -= self._call_tokens(number)
        self.calls.add(number)
        self._change()

    def clear(self, number: int, *, inputs: bool) -> None:
        """Clear the result of a call that is left, with `inputs` its arguments, too."""
        self.cleared.add(number)
        if inputs:
            self._num_parts -= self._call_tokens(number)
            self.inputs.add(number)
            self._num_parts += self._call_tokens(number)
        self._change()

    def drop_text(self) -> None:
        """Take out text and reasoning, of which something is left."""
        self._num_parts -= 0 if self.has_lost_text else self._size.text
        self._num_parts -= 0 if self.has_lost_reasoning else self._size.reasoning
        self.has_lost_text = self.has_lost_reasoning = True
        self._change()

    def add_note(self, note: str) -> None:
        """Put a line behind the others."""
        self._num_parts += self._token_counts.text_tokens(note)
        self._notes.append(note)
        self._change()

    def omissions(self) -> MessageOmissions:
        """All that is taken out now."""
        if not self.is_changed:
            return self._before
        before = self._before
        return replace(
            before,
            reasoning=self.has_lost_reasoning,
            text=self.has_lost_text,
            calls=_grown(before.calls, self.calls),
            cleared=_grown(before.cleared, self.cleared),
            inputs=_grown(before.inputs, self.inputs),
            notes=tuple(self._notes),
        )

    def _change(self) -> None:
        line, self.is_changed = self._line, True
        has_words = bool(self._notes or self._before.summary) or (line.has_text and not self.has_lost_text)
        self.is_left = has_words or len(self.calls) < len(line.names)
        self.num_tokens = self._num_parts if self.is_left else 0

    def _call_tokens(self, number: int) -> int:
        if number in self.inputs:
            return self._token_counts.cleared_call_tokens(self._line.names[number])
        return self._size.calls[number]


def _grown(before: frozenset[int], now: set[int]) -> frozenset[int]:
    """The numbers now. The very object where none came: a session keeps it for each message that was cut."""
    return before if len(now) == len(before) else frozenset(now)


def shown_tokens(outline: Outline, token_counts: TokenCounts, omissions: Omissions, start: int = 0) -> int:
    """Tokens of the conversation from entry `start` on, without what is taken out. From 0 on with the base."""
    total = token_counts.between(start, len(token_counts.sizes)) + (token_counts.base_tokens if start == 0 else 0)
    for first, end in omissions.gone:
        if end > start:
            total -= token_counts.omittable_between(max(first, start), end)
    for entry, kept in omissions.entries.items():
        line = outline.lines[entry]
        if entry >= start:
            size = token_counts.sizes[entry]
            is_in_gone = bool(omissions.gone) and not line.is_user and omissions.in_gone(entry)
            total += message_tokens(line, size, kept, token_counts) - (0 if is_in_gone else size.total)
        for index in kept.cleared - kept.calls if kept.cleared else ():
            results = line.results[index] if index != TEXT else [] if kept.text else line.results_of(TEXT)
            for size in [token_counts.sizes[result] for result in results if result >= start]:
                total += result_tokens(size, kept, index, token_counts) - size.total
    return total


def lasting_tokens(outline: Outline, token_counts: TokenCounts, omissions: Omissions) -> int:
    """Tokens that hardly any eviction will take: the base, what users wrote, what is left of messages cut before."""
    left = sum(
        message_tokens(outline.lines[entry], token_counts.sizes[entry], kept, token_counts)
        for entry, kept in omissions.entries.items()
        if not outline.lines[entry].is_user
    )
    return token_counts.base_tokens + said_tokens(outline, token_counts, omissions) + left


def said_tokens(outline: Outline, token_counts: TokenCounts, omissions: Omissions, start: int = 0) -> int:
    """Tokens shown of what users and the system wrote, from entry `start` on, markers in their place included."""
    num_all = len(token_counts.sizes)
    total = token_counts.between(start, num_all) - token_counts.omittable_between(start, num_all)
    for entry, kept in omissions.entries.items():
        line, size = outline.lines[entry], token_counts.sizes[entry]
        if entry >= start and line.is_user:
            total += message_tokens(line, size, kept, token_counts) - size.total
    return total
