"""What a request took out of a conversation, at the entries of what the session has become meanwhile.

    taken    s  u        [call, result]  ..       call 2 is cleared
    state    s  u  P  P  [call, result]  ..       call 4 is          P: what a branch returned while the model answered

Both hold the same history of the client, in its order. Only what the client does not hold differs between the two. Such
an entry is known by its turn, and by the calls that it makes or answers. What came in between is shown.

Where the session was changed in a way that outdates what the request took out, that is shown again, and told. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from acmserve.context.session.branches.branch import hide_closed
from acmserve.context.session.carrying.branches import CarriedBranches
from acmserve.context.session.carrying.fragments import Landing
from acmserve.context.session.carrying.omissions import (
    carry_omissions,
    hides_less,
    may_leave_out,
    shown_again,
    with_results,
)
from acmserve.context.session.carrying.record import DroppedEdit
from acmserve.context.session.state import Author, SessionState, TranscriptEntry
from acmserve.context.transcript.omissions import Omissions
from acmserve.context.transcript.parts import tool_calls

OUTDATED = "the session was changed while the model answered, which outdates what this request had left out."

_Name = tuple[object, int]


def omissions_at(taken: SessionState, state: SessionState) -> Omissions:
    """The omissions of `taken`, at the entries of `state`. What the branches of `state` hold is left out with them."""
    omissions, places = taken.omissions, {name: entry for entry, name in enumerate(_names(state.entries))}
    landings = {old: Landing(places[name]) for old, name in enumerate(_names(taken.entries)) if name in places}
    if len(landings) < len(taken.entries) or any(old != landing.entry for old, landing in landings.items()):
        before, messages = ([entry.message for entry in each.entries] for each in (taken, state))
        omissions = carry_omissions(omissions, landings, before, messages, CarriedBranches(state.branches))
        omissions = with_results(omissions, messages, state.observations, state.branches)
    return hide_closed(omissions, state.branches)


def dropped_meanwhile(taken: SessionState, state: SessionState) -> list[DroppedEdit]:
    """One record for all messages that `taken` leaves out, and that are shown in `state`, which goes on without it."""
    wanted, observations = omissions_at(taken, state), state.observations
    shown = sum(
        hides_less(wanted, state.omissions, number, number)
        and may_leave_out(wanted, entry.message, number, observations)
        for number, entry in enumerate(state.entries)
    )
    return shown_again(shown, OUTDATED)


def summary_of(omissions: Omissions) -> str:
    """The summary that speaks for what is taken out. "" where there is none."""
    return "" if omissions.summarized is None else omissions.entries[omissions.summarized].summary


def _names(entries: Sequence[TranscriptEntry]) -> Iterator[_Name]:
    """A name of each entry, in both histories the same. Those that the client holds are counted."""
    seen = Counter[object]()
    for entry in entries:
        kind = None if entry.origin is not Author.INTERNAL else (entry.turn, _calls(entry))
        yield kind, seen[kind]
        seen[kind] += 1


def _calls(entry: TranscriptEntry) -> tuple[str, ...]:
    """The calls that an entry makes, or the one that it answers."""
    message = entry.message
    return (str(message.get("tool_call_id")), *(str(call.get("id")) for call in tool_calls(message)))
