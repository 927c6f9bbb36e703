"""What becomes of a transcript: the history that a client resends is taken in, answers and tool results are appended.

    state    [ recognised ............ )[ replaced ...... )
    client   [ the same messages ..... )[ other messages . )

Decision: clients resend their whole history, and `adopt` recognises it by digests. Entries that the client does not
hold (`INTERNAL`: the calls and results of context tools that ran on the server) belong to a *turn*. They stay exactly
as long as the answer of that turn is recognised. Where the history diverges, everything behind is replaced. Fragments
that reach there are dropped. Edits of earlier text stay, and so do its omissions. An open branch ends, failed, where
somebody else than the model speaks, so that no such message is left out with it.

Every function is pure: state in, state out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress

from acmserve.context.session.branching import cut_back_branches, end_where_interrupted
from acmserve.context.session.fragment import Fragment, Visibility
from acmserve.context.session.state import Author, SessionState, TranscriptEntry
from acmserve.context.transcript.message import Message, digest_message
from acmserve.context.transcript.omissions import omissions_before_divergence
from acmserve.errors import InvalidRequest

PLACED = -1
"""The turn of what was put into the conversation from outside: it stays as long as what stands before it."""


@dataclass(frozen=True, slots=True)
class Adoption:
    """A client's history taken in: the new state, how many of its messages were known, and what was dropped."""

    state: SessionState
    num_known: int
    dropped_fragment_ids: tuple[str, ...] = ()


def adopt(state: SessionState, messages: Sequence[Message]) -> Adoption:
    """Take in the history that a client sent. Pure. The same history twice changes nothing.

    It ends the running turn. Raises `InvalidRequest` naming a message that is no JSON object or cannot be UTF-8.
    """
    digests = [_digest(index, message, state.digest_key) for index, message in enumerate(messages)]
    kept: list[TranscriptEntry] = []
    num_known = 0
    for entry in state.entries:
        if entry.origin is Author.INTERNAL:
            kept.append(entry)
            continue
        if num_known == len(messages) or entry.digest != digests[num_known]:
            break
        kept.append(entry if entry.sealed else replace(entry, message=messages[num_known]))
        num_known += 1
    left = cut_back(state, kept)
    new = tuple(
        TranscriptEntry(message, Author.CLIENT, digest)
        for message, digest in zip(messages[num_known:], digests[num_known:], strict=True)
    )
    adopted = replace(left, entries=(*left.entries, *new))
    if adopted.branches:
        adopted = end_where_interrupted(adopted)
    stays = {fragment.fragment_id for fragment in left.fragments}
    return Adoption(adopted, num_known, tuple(f.fragment_id for f in state.fragments if f.fragment_id not in stays))


def cut_back(state: SessionState, kept: Sequence[TranscriptEntry]) -> SessionState:
    """The state when only its first entries are left, `kept`, which may be in other words: a turn that was cut goes."""
    kept = list(kept)
    answered = {entry.turn for entry in kept if entry.origin is Author.ANSWER}
    while kept and kept[-1].origin is Author.INTERNAL and kept[-1].turn not in answered and kept[-1].turn != PLACED:
        kept.pop()
    limit = len(kept)
    stays = [left for fragment in state.fragments if (left := _left_of(fragment, limit)) is not None]
    cut = replace(
        state,
        entries=tuple(kept),
        fragments=tuple(stays),
        hits=tuple(hit for hit in state.hits if hit.place.entry < limit),
        num_turns=max(state.num_turns, *(turn + 1 for turn in answered), 0),
    )
    if limit == len(state.entries):
        return cut
    omissions = omissions_before_divergence(state.omissions, [entry.message for entry in kept])
    return cut_back_branches(replace(cut, omissions=omissions))


def _left_of(fragment: Fragment, num_entries: int) -> Fragment | None:
    """What remains of a fragment when only the first entries stay: all or nothing. What is redacted stays marked."""
    stays = [piece.place.entry < num_entries for piece in fragment.pieces]
    if all(stays):
        return fragment
    if fragment.visibility is not Visibility.REDACTED or fragment.shown is None or not any(stays):
        return None
    pieces, shown = tuple(compress(fragment.pieces, stays)), tuple(compress(fragment.shown, stays))
    return replace(fragment, pieces=pieces, shown=shown)


def _digest(index: int, message: object, key: bytes) -> bytes:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"messages[{index}]", f"must be an object, not {type(message).__name__}.")
    try:
        return digest_message(message, key)
    except UnicodeEncodeError:
        reason = "has half of a surrogate pair, which is no character."
    except RecursionError:
        reason = "is nested too deeply."
    except (TypeError, ValueError) as error:
        reason = f"is not JSON: {error}."
    raise InvalidRequest(f"messages[{index}]", reason)


def append_internal(state: SessionState, messages: Sequence[Message], turn: int | None = None) -> SessionState:
    """Append entries that the client will not see: tool calls of the model, and their results.

    They belong to the running turn, or to `turn`: with `PLACED` they stay as long as what stands before them.
    """
    number = state.num_turns if turn is None else turn
    new = (TranscriptEntry(message, Author.INTERNAL, turn=number, sealed=True) for message in messages)
    return replace(state, entries=(*state.entries, *new))


def append_answer(state: SessionState, message: Message, client_view: Message | None = None) -> SessionState:
    """Append the answer of the running turn. `client_view` is what the client gets, where that is something else.

    The turn ends with the next history that is taken in. Results of context tools called beside the client's own tools
    may still follow the answer.
    """
    seen = message if client_view is None else client_view
    digest = digest_message(seen, state.digest_key)
    sealed = digest != digest_message(message, state.digest_key)
    entry = TranscriptEntry(message, Author.ANSWER, digest, state.num_turns, sealed=sealed)
    return replace(state, entries=(*state.entries, entry))


def end_turn(state: SessionState) -> SessionState:
    """The next internal entries belong to a new turn."""
    return replace(state, num_turns=state.num_turns + 1)
