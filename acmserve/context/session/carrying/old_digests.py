"""Brings the digests of a session that acmserve 0.1 stored up to date.

    entry of the client                 its own words, so the digest is made anew of them
    entry that was redacted             its words are gone. The client's message of the same old digest has them
    entry with other words than sent    the same

The words of a redacted text are seen once more here, when the client sends them again, and kept as digests. An entry
whose message does not come keeps its old digest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from acmserve.context.alignment.normal_form import digest_normal_form
from acmserve.context.alignment.redacted_text import RedactedText, seal_text
from acmserve.context.session.fragment import Visibility
from acmserve.context.session.state import Author, SessionState
from acmserve.context.transcript.message import Message, digest_message, text_at, texts

NUM_OLD_BYTES = 16


def is_old(digest: bytes) -> bool:
    """Whether a digest is of the old form. One of the new form is a byte longer."""
    return len(digest) == NUM_OLD_BYTES


def with_new_digests(state: SessionState, messages: Sequence[Message]) -> SessionState:
    """The state with new digests wherever they can be made. The very object where there is nothing to do."""
    old = [at for at, entry in enumerate(state.entries) if is_old(entry.digest) and entry.origin is not Author.INTERNAL]
    if not old:
        return state
    sent = _by_old_digest(messages, state.digest_key) if any(state.entries[at].sealed for at in old) else {}
    entries, redacted = list(state.entries), list(state.redacted)
    for at in old:
        entry = entries[at]
        message = sent.get(entry.digest) if entry.sealed else entry.message
        if message is not None:
            entries[at] = replace(entry, digest=digest_normal_form(message, state.digest_key))
        if entry.sealed and message is not None:
            redacted += _sealed(state, at, message)
    return replace(state, entries=tuple(entries), redacted=tuple(redacted))


def _by_old_digest(messages: Sequence[Message], key: bytes) -> dict[bytes, Message]:
    """The messages by their old digests, and by those of the same content as a string or as one part."""
    found: dict[bytes, Message] = {}
    for message in messages:
        # What cannot be digested is refused by its number later.
        with contextlib.suppress(AttributeError, TypeError, ValueError, RecursionError):
            text = "\n".join(text for _, text in texts(message))
            for form in (
                message,
                {**message, "content": text},
                {**message, "content": [{"type": "text", "text": text}]},
            ):
                found.setdefault(digest_message(form, key), form)
    return found


def _sealed(state: SessionState, at: int, message: Message) -> list[RedactedText]:
    """What was redacted in an entry, from the client's message of the same words."""
    found = [
        seal_text(
            text_at(message, piece.place.part)[piece.start : piece.end],
            state.digest_key,
            fragment.fragment_id,
            fragment.role,
            fragment.num_tokens,
        )
        for fragment in state.fragments
        if fragment.visibility is Visibility.REDACTED
        for piece in fragment.pieces
        if piece.place.entry == at
    ]
    return [sealed for sealed in found if sealed is not None]
