"""What a conversation weighs when parts of it are taken out. Agrees with `render_shed`, message by message.

shown = all messages - ranges that are gone (running sums) + what is left of the entries that are cut (one by one)
"""

from __future__ import annotations

from acmserve.context.transcript.omissions import NOTHING, EntryShed, Shed
from acmserve.context.transcript.outline import Line, Outline
from acmserve.context.transcript.token_counts import EntrySize, TokenLedger


def is_left(line: Line, shed: EntryShed) -> bool:
    """Whether anything of an assistant's message stays."""
    if shed is NOTHING or shed.lines or (line.has_text and not shed.text):
        return True
    return len(shed.calls) < len(line.names)


def message_tokens(line: Line, size: EntrySize, shed: EntryShed, ledger: TokenLedger) -> int:
    """Tokens of what is left of an assistant's message."""
    if shed is NOTHING:
        return size.total
    if not is_left(line, shed):
        return 0
    notes = sum([ledger.text_tokens(note) for note in shed.lines])
    if shed.text and shed.reasoning and len(shed.calls) == len(size.calls):
        return size.overhead + notes
    calls = sum(
        ledger.cleared_call_tokens(line.names[index]) if index in shed.inputs else num
        for index, num in enumerate(size.calls)
        if index not in shed.calls
    )
    text = 0 if shed.text else size.text
    reasoning = 0 if shed.reasoning else size.reasoning
    return size.overhead + text + reasoning + calls + notes


def result_tokens(size: EntrySize, shed: EntryShed, index: int, ledger: TokenLedger) -> int:
    """Tokens of the result of call `index` of a message of which this is taken out."""
    if index in shed.calls:
        return 0
    return size.overhead + ledger.placeholder_tokens() if index in shed.cleared else size.total


def shown_tokens(outline: Outline, ledger: TokenLedger, shed: Shed, start: int = 0) -> int:
    """Tokens of the conversation from entry `start` on, without what is taken out; from 0 on with the base."""
    total = ledger.between(start, len(ledger)) + (ledger.base_tokens if start == 0 else 0)
    for first, end in shed.gone:
        if end > start:
            total -= ledger.sheddable_between(max(first, start), end)
    for entry, kept in shed.entries.items():
        line = outline.lines[entry]
        if entry >= start:
            size = ledger.size(entry)
            total += message_tokens(line, size, kept, ledger) - (0 if shed.in_gone(entry) else size.total)
        for index in kept.cleared - kept.calls if kept.cleared else ():
            result = line.results[index]
            if result is not None and result >= start:
                size = ledger.size(result)
                total += result_tokens(size, kept, index, ledger) - size.total
    return total


def lasting_tokens(outline: Outline, ledger: TokenLedger, shed: Shed) -> int:
    """Tokens that hardly any eviction will take: the base, what users wrote, what is left of messages cut before."""
    left = sum(
        message_tokens(outline.lines[entry], ledger.size(entry), kept, ledger) for entry, kept in shed.entries.items()
    )
    return ledger.base_tokens + ledger.between(0, len(ledger)) - ledger.sheddable_between(0, len(ledger)) + left
