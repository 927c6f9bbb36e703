"""What a conversation weighs when parts of it are taken out. Agrees with `render_without`, message by message.

shown = all messages - ranges that are gone (running sums) + what is left of the entries that are cut (one by one)
"""

from __future__ import annotations

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
    if not is_left(line, omissions):
        return 0
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
