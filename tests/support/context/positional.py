"""How a history was taken in by acmserve 0.1: compared message by message, all behind the first difference replaced.

The control of the fuzzer of respellings, which has to fail for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from acmserve.context.session.branches.branching import end_where_interrupted
from acmserve.context.session.cutting import cut_back
from acmserve.context.session.history import Adoption
from acmserve.context.session.state import Author, SessionState, TranscriptEntry
from acmserve.context.transcript.message import Message


def adopt_by_position(state: SessionState, messages: Sequence[Message]) -> Adoption:
    """Take in a history as the first version did. Messages are compared as they are."""
    kept: list[TranscriptEntry] = []
    num_known = 0
    for entry in state.entries:
        if entry.origin is not Author.INTERNAL:
            if num_known == len(messages) or entry.message != messages[num_known]:
                break
            num_known += 1
        kept.append(entry)
    left = cut_back(state, kept)
    new = tuple(TranscriptEntry(message, Author.CLIENT, b"new") for message in messages[num_known:])
    adopted = replace(left, entries=(*left.entries, *new))
    return Adoption(end_where_interrupted(adopted), num_known)
