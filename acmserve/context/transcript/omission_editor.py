"""Takes parts of a conversation out, one by one, and keeps count of what is left. The result is a new `Omissions`.

    editor = OmissionEditor(outline, token_counts, before)
    editor.drop_call(use); editor.num_tokens <= target ?; ...; editor.omissions()

Every operation does nothing when it was done before. A message that is left with nothing joins the ranges that are
gone, and ranges grow together over user turns and notes. What is taken out of an old conversation is a few ranges,
however many episodes it had. It decides nothing: the policies do.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import replace
from sys import maxsize

from acmserve.context.transcript.omissions import NOTHING, USERS_LEFT_OUT, MessageOmissions, Omissions
from acmserve.context.transcript.omitted_tokens import OpenMessage, is_left, message_tokens, shown_tokens
from acmserve.context.transcript.outline import TEXT, Outline, Use
from acmserve.context.transcript.parts import Role
from acmserve.context.transcript.token_counts import TokenCounts


class _TakenUsers:
    """The messages of the user that are taken out: the first one, and those in whose place notes stand."""

    def __init__(self) -> None:
        self.first = maxsize
        self.with_notes: set[int] = set()

    def note(self, entry: int, kept: MessageOmissions) -> None:
        """What of a message is taken out now. None comes back."""
        if kept.text:
            self.first = min(self.first, entry)
        if kept.text and kept.notes:
            self.with_notes.add(entry)
        else:
            self.with_notes.discard(entry)


class OmissionEditor:
    """`num_tokens` is what the conversation weighs now, `num_before` what it weighed at first.

    `num_operations` counts what took something visible. `num_uses` and `num_reasoning` are the tool calls and the
    messages' reasonings that this editor took or cleared.
    """

    def __init__(self, outline: Outline, token_counts: TokenCounts, before: Omissions) -> None:
        self._outline = outline
        self._lines, self._sizes = outline.lines, token_counts.sizes
        self._token_counts = token_counts
        self._before = before
        self._changed: dict[int, MessageOmissions] = {}
        self._opened: dict[int, OpenMessage] = {}
        self._gone: set[int] = set()
        self._weights: dict[int, int] = {}
        self._taken_users: _TakenUsers | None = None
        self.num_before = self.num_tokens = self._count(before)
        self.num_operations = 0
        self.num_uses = 0
        self.num_reasoning = 0
        self.first_entry: int | None = None

    def _count(self, before: Omissions) -> int:
        """What is shown before the first operation, counted once for each `Omissions`."""
        num_saved = self._token_counts.remembered(before)
        if num_saved is not None:
            return self._token_counts.num_tokens - num_saved
        num_shown = shown_tokens(self._outline, self._token_counts, before)
        self._token_counts.remember(before, self._token_counts.num_tokens - num_shown)
        return num_shown

    def of(self, entry: int) -> MessageOmissions:
        """What is taken out of an assistant's message now."""
        opened = self._opened.pop(entry, None)
        if opened is not None and opened.is_changed:
            self._changed[entry] = opened.omissions()
        kept = self._changed.get(entry) or self._before.entries.get(entry)
        if kept is not None:
            return kept
        is_ranged = self._lines[entry].role is not Role.PROTECTED
        if not is_ranged or not self._before.gone or not self._before.in_gone(entry):
            return NOTHING
        return MessageOmissions(reasoning=True, text=True, calls=frozenset(range(len(self._lines[entry].names))))

    def has_lost(self, use: Use) -> bool:
        """Whether a tool call is gone."""
        opened = self._open(use.entry)
        return opened.has_lost_text if use.number == TEXT else use.number in opened.calls

    def strip_reasoning(self, entry: int) -> None:
        """Take out the reasoning of a message."""
        kept = self.of(entry)
        if self._lines[entry].has_reasoning and not kept.reasoning:
            self._set(entry, replace(kept, reasoning=True))
            self.num_reasoning += 1

    def drop_calls(self, uses: Iterable[Use]) -> None:
        """Take out tool calls and their results."""
        for use in uses:
            opened = self._open(use.entry)
            if use.number in opened.calls:
                continue
            is_cleared = use.number in opened.cleared
            for result in self._lines[use.entry].results[use.number]:
                self.num_tokens -= self._result_tokens(result, is_cleared)
                self._gone.add(result)
            before = opened.num_tokens, opened.is_left
            opened.drop_call(use.number)
            self._follow(use.entry, opened, *before)
            self.num_uses += 1

    def drop_call(self, use: Use) -> None:
        """Take out a tool call and its result."""
        self.drop_calls((use,))

    def clear_result(self, use: Use, inputs: bool) -> None:
        """Put the placeholder in the place of a result. With `inputs` the call loses its arguments, too."""
        opened, line = self._open(use.entry), self._lines[use.entry]
        results = line.results_of(TEXT) if use.number == TEXT else line.results[use.number]
        if not results or self.has_lost(use):
            return
        is_new = use.number not in opened.cleared
        takes_inputs = inputs and use.number != TEXT and use.number not in opened.inputs
        if not is_new and not takes_inputs:
            return
        for result in results if is_new else ():
            self.num_tokens += self._result_tokens(result, True) - self._result_tokens(result, False)
        before = opened.num_tokens, opened.is_left
        opened.clear(use.number, inputs=takes_inputs)
        self._follow(use.entry, opened, *before)
        self.num_uses += is_new

    def drop_texts(self, entries: Iterable[int]) -> None:
        """Take out the text and the reasoning of messages, or results that answer no call."""
        for entry in entries:
            self.drop_text(entry)

    def drop_text(self, entry: int) -> None:
        """Take out the text and the reasoning of a message, with its observation, or a result that answers no call."""
        line = self._lines[entry]
        if line.role is Role.RESULT:
            if entry not in self._gone and not self._before.in_gone(entry):
                self.num_tokens -= self._sizes[entry].total
                self._gone.add(entry)
                self._touch(entry)
            return
        opened = self._open(entry)
        has_text, has_reasoning = not opened.has_lost_text, not opened.has_lost_reasoning
        if has_text or has_reasoning:
            self.num_reasoning += line.has_reasoning and has_reasoning
            if line.observation is not None and has_text:
                self.num_tokens -= self._result_tokens(line.observation, TEXT in opened.cleared)
                self._gone.add(line.observation)
                self.num_uses += 1
            before = opened.num_tokens, opened.is_left
            opened.drop_text()
            said = (has_text and (line.has_text or line.is_user)) or (has_reasoning and line.has_reasoning)
            self._follow(entry, opened, *before, is_visible=said)

    def drop_step(self, entry: int) -> None:
        """Take out a message with its calls and their results. Notes that stand in its place stay."""
        self.drop_calls([Use(entry, number) for number in range(len(self._lines[entry].names))])
        self.drop_text(entry)

    def drop_user(self, entry: int) -> None:
        """Take out a message of the user. A marker takes the place of the first that goes, in front of all others."""
        if self.of(entry).text:
            return
        if self._taken_users is None:
            self._taken_users = _TakenUsers()
            for other in {*self._before.entries, *self._changed}:
                self._note_user(other)
        is_first = entry < self._taken_users.first
        for other in [*self._taken_users.with_notes] if is_first else ():
            self._set(other, replace(self.of(other), notes=()))
        self._set(entry, MessageOmissions(text=True, notes=(USERS_LEFT_OUT,) if is_first else ()))

    def _note_user(self, entry: int) -> None:
        """Keep up with the messages of the user that are taken out."""
        if self._taken_users is not None and self._lines[entry].is_user:
            self._taken_users.note(entry, self.of(entry))

    def add_note(self, entry: int, note: str) -> None:
        """Put a line behind what is left of a message."""
        opened = self._open(entry)
        before = opened.num_tokens, opened.is_left
        opened.add_note(note)
        self._follow(entry, opened, *before)

    def noted(self) -> list[int]:
        """The messages of the assistant in whose place notes stand, the oldest first."""
        entries = {*self._before.entries, *self._changed}
        return sorted(entry for entry in entries if not self._lines[entry].is_user and self.of(entry).notes)

    def drop_notes(self, entry: int) -> None:
        """Take out the notes that stand in a message's place. A summary stays."""
        kept = self.of(entry)
        if kept.notes:
            self._set(entry, replace(kept, notes=()))

    def drop_lines(self, entry: int) -> None:
        """Take out the notes and the summary that stand in a message's place."""
        kept = self.of(entry)
        if kept.notes or kept.summary:
            self._set(entry, replace(kept, notes=(), summary="", summary_end=0))

    def set_summary(self, entry: int, summary: str, end: int) -> None:
        """Put a summary in the place of a message. It was written from entries before `end`."""
        self._set(entry, replace(self.of(entry), summary=summary, summary_end=end))

    def omissions(self) -> Omissions:
        """All that is taken out now."""
        if not self._changed and not self._gone:
            return self._before
        entries, gone = dict(self._before.entries), set(self._gone)
        for entry in self._changed:
            line, opened = self._lines[entry], self._opened.get(entry)
            stays = is_left(line, self._changed[entry]) if opened is None else opened.is_left
            if line.is_user or stays:
                entries[entry] = self.of(entry)
            else:
                entries.pop(entry, None)
                gone.add(entry)
        omissions = Omissions(self._ranges(gone, entries), entries)
        self._token_counts.remember(omissions, self._token_counts.num_tokens - self.num_tokens)
        return omissions

    def _ranges(self, gone: set[int], entries: dict[int, MessageOmissions]) -> tuple[tuple[int, int], ...]:
        """The ranges from before and new entries, grown together where nothing else lies between."""
        cut = sorted(entry for entry in entries if self._lines[entry].role is not Role.PROTECTED)
        pieces = sorted([*self._before.gone, *((entry, entry + 1) for entry in gone)])
        merged: list[tuple[int, int]] = []
        for start, end in pieces:
            if merged and self._is_empty_between(merged[-1][1], start, cut):
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        return tuple(merged)

    def _is_empty_between(self, start: int, end: int, cut: list[int]) -> bool:
        """Whether all of `[start, end)` is protected, or stands in `cut` on its own."""
        if end <= start:
            return True
        return self._outline.num_omittable(start, end) == bisect_left(cut, end) - bisect_left(cut, start)

    def _open(self, entry: int) -> OpenMessage:
        """A message of which many parts may go one by one. `of` closes it."""
        opened = self._opened.get(entry)
        if opened is None:
            opened = OpenMessage(self._lines[entry], self._sizes[entry], self.of(entry), self._token_counts)
            self._opened[entry] = opened
        return opened

    def _follow(
        self, entry: int, opened: OpenMessage, num_before: int, was_left: bool, *, is_visible: bool = True
    ) -> None:
        """Keep up with a message that has changed while it is open."""
        self._weights[entry] = opened.num_tokens
        self.num_tokens += opened.num_tokens - num_before
        self._changed.setdefault(entry, NOTHING)
        self._note_user(entry)
        if was_left:
            self._touch(entry, is_visible)

    def _set(self, entry: int, new: MessageOmissions) -> None:
        line, size, old = self._lines[entry], self._sizes[entry], self.of(entry)
        weight = self._weights.get(entry)
        if weight is None:
            weight = size.total if old is NOTHING else message_tokens(line, size, old, self._token_counts)
        self._weights[entry] = message_tokens(line, size, new, self._token_counts)
        self.num_tokens += self._weights[entry] - weight
        self._changed[entry] = new
        self._note_user(entry)
        if old is NOTHING or is_left(line, old):
            took_text = new.text and not old.text
            took_reasoning = new.reasoning and not old.reasoning
            said = (took_text and (line.has_text or line.is_user)) or (took_reasoning and line.has_reasoning)
            self._touch(entry, said or replace(new, text=old.text, reasoning=old.reasoning) != old)

    def _result_tokens(self, result: int, is_cleared: bool) -> int:
        """Tokens of a result whose call is left."""
        size = self._sizes[result]
        return size.overhead + self._token_counts.placeholder_tokens() if is_cleared else size.total

    def _touch(self, entry: int, is_visible: bool = True) -> None:
        self.num_operations += is_visible
        self.first_entry = entry if self.first_entry is None else min(self.first_entry, entry)
