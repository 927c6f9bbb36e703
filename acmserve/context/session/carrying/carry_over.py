"""A session with a history that is not the old one and more: entries where they stand now, and the edits with them.

    state --cut_back--> what lies before the last known entry --lay_out--> slots
    slots --> entries and landings --> fragments, search results, omissions, branches, each carried over

What was behind the last message that the client still has goes first, as in a rewind (`cutting.py`). The rest is put in
the client's order. A known message is the client's very object, unless its entry is sealed. What was redacted is cut
out of changed and new messages. Every edit that is lost on the way has a record. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from acmserve.context.alignment.core_text import SearchRoom, TextMap
from acmserve.context.alignment.match import MatchKind
from acmserve.context.alignment.redacted_index import RedactedIndex
from acmserve.context.session.branches.branch import ended_without, hide_closed
from acmserve.context.session.branches.branching import INTERRUPTED, set_result
from acmserve.context.session.carrying.branches import carry_branches
from acmserve.context.session.carrying.fragments import (
    Landing,
    carry_fragments,
    carry_hits,
    dropped_fragment,
    dropped_hits,
)
from acmserve.context.session.carrying.layout import EntrySlot, lay_out
from acmserve.context.session.carrying.matched import MatchedHistory
from acmserve.context.session.carrying.old_digests import is_old
from acmserve.context.session.carrying.omissions import (
    carry_omissions,
    dropped_omissions,
    hold_in_place,
    with_results,
)
from acmserve.context.session.carrying.record import REMOVED, DroppedEdit
from acmserve.context.session.carrying.redactions import (
    CutMessage,
    EntryRedactions,
    cut_each,
    found_anew,
    found_pieces,
    redactions_at,
)
from acmserve.context.session.cutting import cut_back
from acmserve.context.session.fragment import Fragment, Visibility
from acmserve.context.session.nesting import PiecesByPlace, minus
from acmserve.context.session.state import Author, SessionState, TranscriptEntry
from acmserve.context.transcript.call_arguments import argument_texts
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.parts import Role, role_of, tool_calls

UNKNOWN_REDACTION = (
    "it was made by an older version, and its message came in other words. The message stays as it was redacted."
)
EMPTIED = "its text came in arguments of a call in which no place can be marked. Those arguments are empty now."


@dataclass(frozen=True, slots=True)
class CarriedOver:
    """The state with the new history, a record of every edit that it has not, and which entries are new."""

    state: SessionState
    dropped: tuple[DroppedEdit, ...]
    new: tuple[int, ...] = ()


def carry_over(state: SessionState, history: MatchedHistory, messages: Sequence[Message]) -> CarriedOver:
    """Put the session's edits on a client's messages. Pure."""
    history, held_back = _keep_unknown_redactions(state, history)
    known = [history.held[match.old] for match in history.matches if match is not None and match.is_known]
    last = max(known, default=-1)
    end = next((at for at in history.held if at > last), len(state.entries))
    cut = cut_back(state, state.entries[:end])
    slots = _slots(cut, history, messages)
    entries, cuts = _entries(state, cut, slots, history, messages)
    landings = _landings(cut, slots, entries, _used(cut), cuts)
    is_as_it_was = not cuts and all(at == to.entry and to.text_map is None for at, to in landings.items())
    old, new_messages = _messages(cut.entries), _messages(entries)
    is_as_it_was = is_as_it_was and len(landings) == len(cut.entries)
    if is_as_it_was and hold_in_place(cut.omissions, old, new_messages):
        carried = replace(cut, entries=tuple(entries))
        omissions = with_results(cut.omissions, new_messages, carried.observations, cut.branches)
        carried = carried if omissions is cut.omissions else replace(carried, omissions=omissions)
        dropped = list[DroppedEdit]()
    else:
        carried, dropped = _carried(cut, entries, landings, found_pieces(cuts))
    lost = _lost_in_cut(state, cut)
    lost += dropped_omissions(state.omissions, carried.omissions, landings, old, cut.observations, state.branches)
    new = tuple(index for index, slot in enumerate(slots) if slot.old is None)
    emptied = dict.fromkeys(name for found in cuts.values() for name in found.emptied)
    dropped += [DroppedEdit("redaction", name, EMPTIED) for name in emptied]
    return CarriedOver(carried, (*held_back, *lost, *dropped), new)


def cut_out(state: SessionState, numbers: Collection[int]) -> SessionState:
    """The state without what was redacted in the entries of these numbers. Pure.

    A fragment that lies in a place that is cut out, or crosses a redaction then, goes.
    """
    redacted = RedactedIndex(state.redacted, state.digest_key)
    cut_messages = cut_each([(state.entries[at].message, EntryRedactions()) for at in numbers], redacted)
    cuts = {at: cut for at, cut in zip(numbers, cut_messages, strict=True) if cut.is_cut}
    if not cuts:
        return state
    entries = [
        replace(entry, message=cuts[at].message, sealed=True) if at in cuts else entry
        for at, entry in enumerate(state.entries)
    ]
    gone = [piece for f in state.fragments if f.visibility is Visibility.REDACTED for piece in f.pieces]
    # A margin reaches over what is erased already.
    found = {name: new for name, pieces in found_pieces(cuts).items() if (new := minus(pieces, gone))}
    inside = PiecesByPlace(piece for pieces in found.values() for piece in pieces)
    left = tuple(f for f in state.fragments if f.visibility is Visibility.REDACTED or not _lies_in(f, inside))
    landings = {
        at: Landing(at, TextMap(entry.message, entries[at].message) if at in cuts and cuts[at].emptied else None)
        for at, entry in enumerate(state.entries)
    }
    return _carried(replace(state, fragments=left), entries, landings, found)[0]


def _lies_in(fragment: Fragment, places: PiecesByPlace) -> bool:
    return any(places.covers([piece]) for piece in fragment.pieces)


def _slots(cut: SessionState, history: MatchedHistory, messages: Sequence[Message]) -> list[EntrySlot]:
    if history.is_prefix:
        numbers = iter(range(history.num_prefix))
        slots = [
            EntrySlot(at) if entry.origin is Author.INTERNAL else EntrySlot(at, next(numbers))
            for at, entry in enumerate(cut.entries)
        ]
        return [*slots, *(EntrySlot(None, new) for new in range(history.num_prefix, len(messages)))]
    return lay_out(cut.entries, history.held, history.matches, messages)


def _entries(
    state: SessionState,
    cut: SessionState,
    slots: Sequence[EntrySlot],
    history: MatchedHistory,
    messages: Sequence[Message],
) -> tuple[list[TranscriptEntry], dict[int, CutMessage]]:
    """The entries of the slots, and those of which something was cut out again."""
    entries: list[TranscriptEntry] = []
    cuts: dict[int, CutMessage] = {}
    searched = _searched(state, slots, history)
    sent = [(messages[new], in_place) for new, in_place in searched.items()]
    found_in = dict(zip(searched, cut_each(sent, RedactedIndex(state.redacted, state.digest_key)), strict=True))
    for slot in slots:
        old = None if slot.old is None else cut.entries[slot.old]
        if slot.new is None:
            assert old is not None
            entries.append(old)
            continue
        message, digest = messages[slot.new], history.digests[slot.new]
        if old is not None and slot.new not in found_in:
            entries.append(_with_ids(old, message) if old.sealed else replace(old, message=message, digest=digest))
            continue
        found = found_in[slot.new]
        if found.is_cut:
            cuts[len(entries)] = found
        entry = TranscriptEntry(message, Author.CLIENT) if old is None else old
        entries.append(replace(entry, message=found.message, digest=digest, sealed=found.is_cut))
    return entries, cuts


def _searched(state: SessionState, slots: Sequence[EntrySlot], history: MatchedHistory) -> dict[int, EntryRedactions]:
    """The messages in which redacted texts are looked for, and the redactions of those whose place they take."""
    redactions = redactions_at(state) if state.redacted else {}
    searched: dict[int, EntryRedactions] = {}
    for slot in slots:
        if slot.new is not None:
            match = history.matches[slot.new]
            if slot.old is None or match is None or match.kind is not MatchKind.SAME:
                at = None if match is None else history.held[match.old]
                searched[slot.new] = EntryRedactions() if at is None else redactions.get(at, EntryRedactions())
    return searched


def _keep_unknown_redactions(
    state: SessionState, history: MatchedHistory
) -> tuple[MatchedHistory, tuple[DroppedEdit, ...]]:
    """The history in which a message that may hold a text redacted by an older version is the entry as it stands."""
    redactions = {at: found.ids for at, found in redactions_at(state).items() if is_old(state.entries[at].digest)}
    if not redactions:
        return history, ()
    matches, digests = list(history.matches), list(history.digests)
    held_back: list[DroppedEdit] = []
    for new, match in enumerate(matches):
        at = -1 if match is None else history.held[match.old]
        if match is not None and match.kind is not MatchKind.SAME and at in redactions:
            matches[new] = replace(match, kind=MatchKind.SAME)
            digests[new] = state.entries[at].digest
            held_back += [DroppedEdit("redaction", name, UNKNOWN_REDACTION) for name in sorted(redactions[at])]
    return replace(history, matches=matches, digests=tuple(digests)), tuple(held_back)


def _with_ids(entry: TranscriptEntry, message: Message) -> TranscriptEntry:
    """A sealed entry with the ids of calls that the client gives them now."""
    changed: dict[str, Any] = {}
    call_id = message.get("tool_call_id")
    if call_id and call_id != entry.message.get("tool_call_id"):
        changed["tool_call_id"] = call_id
    sent, held = tool_calls(message), tool_calls(entry.message)
    if sent and [call.get("id") for call in sent] != [call.get("id") for call in held]:
        changed["tool_calls"] = _renamed(held, sent)
    return replace(entry, message={**entry.message, **changed}) if changed else entry


def _renamed(held: Sequence[Mapping[str, Any]], sent: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The calls of an entry, those of the client with its ids. The client may hold fewer, in the same order."""
    waiting = list(sent)
    renamed: list[Mapping[str, Any]] = []
    for call in held:
        own = next((number for number, other in enumerate(waiting) if _names(other) == _names(call)), None)
        renamed.append(call if own is None else {**call, "id": waiting[own].get("id")})
        waiting = waiting if own is None else waiting[own + 1 :]
    return renamed


def _names(call: Mapping[str, Any]) -> object:
    function = call.get("function")
    return function.get("name") if isinstance(function, Mapping) else None


def _used(state: SessionState) -> frozenset[int]:
    """The entries in which something is cut or found, and those of users that are left out."""
    pieces = (piece.place.entry for fragment in state.fragments for piece in fragment.pieces)
    users = (at for at in state.omissions.entries if role_of(state.entries[at].message) is Role.PROTECTED)
    return frozenset((*pieces, *(hit.place.entry for hit in state.hits), *users))


def _landings(
    cut: SessionState,
    slots: Sequence[EntrySlot],
    entries: Sequence[TranscriptEntry],
    used: frozenset[int],
    cuts: Collection[int],
) -> dict[int, Landing]:
    landings: dict[int, Landing] = {}
    room = SearchRoom()
    for entry, slot in enumerate(slots):
        if slot.old is not None:
            old, new = cut.entries[slot.old].message, entries[entry].message
            is_new_text = slot.old in used and old is not new and (entry in cuts or _have_other_texts(old, new))
            landings[slot.old] = Landing(entry, TextMap(old, new, room) if is_new_text else None)
    return landings


def _have_other_texts(old: Message, new: Message) -> bool:
    if old.get("content") != new.get("content"):
        return True
    calls = old.get("tool_calls"), new.get("tool_calls")
    return calls[0] != calls[1] and argument_texts(old) != argument_texts(new)


def _carried(
    cut: SessionState, entries: list[TranscriptEntry], landings: dict[int, Landing], found: dict[str, Any]
) -> tuple[SessionState, list[DroppedEdit]]:
    """The state with these entries and all that is carried over to them."""
    fragments, lost = carry_fragments(cut.fragments, landings, found)
    hits, lost_hits = carry_hits(cut.hits, landings)
    branches = carry_branches(cut.branches, landings, len(cut.entries))
    old, new = _messages(cut.entries), _messages(entries)
    omissions = carry_omissions(cut.omissions, landings, old, new, branches)
    omissions = hide_closed(omissions, branches.branches)
    observations = [at for at, entry in enumerate(entries) if entry.is_observation]
    carried = replace(
        cut,
        entries=tuple(entries),
        fragments=(*fragments, *found_anew(cut.fragments, found, cut.redacted)),
        hits=hits,
        omissions=with_results(omissions, new, observations, branches.branches),
        branches=branches.branches,
    )
    for ended in branches.ended:
        carried = set_result(carried, ended, ended_without(INTERRUPTED))
    if carried.parent is not None:
        parent = carried.parent
        end = max((to.entry + 1 for at, to in landings.items() if at < parent.num_entries), default=0)
        num_messages = sum(entry.origin is not Author.INTERNAL for entry in entries[:end])
        carried = replace(carried, parent=replace(parent, num_entries=end, num_messages=num_messages))
    turns = {entry.turn for entry in cut.entries if entry.origin is Author.INTERNAL}
    gone = turns - {entry.turn for entry in entries if entry.origin is Author.INTERNAL}
    lost += [DroppedEdit("turn", str(turn), "its answer is no longer in the history.") for turn in sorted(gone)]
    return carried, [*lost, *lost_hits, *branches.dropped]


def _messages(entries: Sequence[TranscriptEntry]) -> list[Message]:
    return [entry.message for entry in entries]


def _lost_in_cut(state: SessionState, cut: SessionState) -> list[DroppedEdit]:
    """What went with the last entries of the old history."""
    if cut.fragments == state.fragments and cut.hits == state.hits and cut.branches == state.branches:
        return []
    left = {fragment.fragment_id for fragment in cut.fragments}
    lost = [dropped_fragment(fragment, REMOVED) for fragment in state.fragments if fragment.fragment_id not in left]
    hits = {hit.search_id for hit in cut.hits}
    calls = {(branch.call_id, branch.call_entry) for branch in cut.branches}
    branches = [b for b in state.branches if (b.call_id, b.call_entry) not in calls]
    lost += [DroppedEdit("branch", branch.call_id, REMOVED) for branch in branches]
    return [*lost, *dropped_hits([hit.search_id for hit in state.hits if hit.search_id not in hits])]
