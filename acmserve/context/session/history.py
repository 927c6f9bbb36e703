"""What becomes of a transcript: the history that a client resends is taken in, answers and tool results are appended.

    state    system   user   [calls, results]   answer   user
    client   system'  user                      answer   block   user   user        aligned, not compared

Decision: clients resend their whole history, in slightly other words, and not always in the same order. `adopt` aligns
it with the session's entries. One that only grows, word for word, is appended without that. Edits follow the messages
that the session knows again. Entries that the client does not hold (`INTERNAL`: the calls and results of context tools
that ran on the server) belong to a *turn*. They stay as long as the answer of that turn is recognised. What the client
no longer has is gone. Every edit that goes with it is told. An open branch ends, failed, where somebody else than the
model speaks, so that no such message is left out with it.

Every function is pure: state in, state out. How edits are carried over says `carrying/`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from acmserve.context.alignment.normal_form import digest_normal_form, digest_sent
from acmserve.context.session.branches.branching import end_where_interrupted
from acmserve.context.session.carrying.carry_over import CarriedOver, carry_over
from acmserve.context.session.carrying.fragments import dropped_fragment
from acmserve.context.session.carrying.late_results import late_results, left_out
from acmserve.context.session.carrying.matched import MatchedHistory, match_history
from acmserve.context.session.carrying.old_digests import NUM_OLD_BYTES, with_new_digests
from acmserve.context.session.carrying.omissions import with_results
from acmserve.context.session.carrying.record import DroppedEdit
from acmserve.context.session.state import Author, SessionState, TranscriptEntry
from acmserve.context.transcript.message import Message, digest_message
from acmserve.context.transcript.observations import AUTO, ObservationRule

INTERRUPTED_NOW = "a message of somebody else than the model came; it ends without a result."
END_REMOVED = "its end is no longer in the history."
OTHER_RESULT = "the result of its branch says something else now."


@dataclass(frozen=True, slots=True)
class Adoption:
    """A client's history taken in. `num_known` of its messages were recognised, if in other words.

    `num_of_parent` are those of the session's parent among them. `dropped` has a record of every edit that was lost.
    """

    state: SessionState
    num_known: int
    dropped: tuple[DroppedEdit, ...] = ()
    num_of_parent: int = 0

    @property
    def fields(self) -> dict[str, Any]:
        """The field `dropped` of an answer. Nothing where every edit was kept."""
        return {"dropped": [edit.as_dict() for edit in self.dropped]} if self.dropped else {}


def adopt(state: SessionState, messages: Sequence[Message], rule: ObservationRule = AUTO) -> Adoption:
    """Take in the history that a client sent. Pure. The same history twice changes nothing.

    `rule` finds observations among new messages where the session has none of its own.

    It ends the running turn. Raises `InvalidRequest` naming a message that is no JSON object or cannot be UTF-8.
    """
    if any(len(entry.digest) == NUM_OLD_BYTES for entry in state.entries):
        state = with_new_digests(state, messages)
    if grows(state, messages):
        carried, num_known = _appended(state, messages)
        num_of_parent = 0 if state.parent is None else min(num_known, state.parent.num_messages)
    else:
        history = match_history(state, messages)
        carried, num_known = carry_over(state, history, messages), history.num_known
        num_of_parent = _num_of_parent(state, history)
    entries = judged(carried.state.entries, carried.new, state.observation_rule or rule)
    adopted = carried.state if entries is carried.state.entries else replace(carried.state, entries=entries)
    adopted, dropped = interrupted(state, adopted, carried.dropped)
    has_results = any("tool_call_id" in adopted.entries[entry].message for entry in carried.new)
    late = late_results(adopted, carried.new) if has_results else []
    if adopted is not carried.state or late:
        adopted = results_with_calls(adopted)
    if late:
        dropped = (*dropped, *left_out(adopted, late))
    return Adoption(adopted, num_known, dropped, num_of_parent)


def interrupted(
    before: SessionState, state: SessionState, dropped: tuple[DroppedEdit, ...]
) -> tuple[SessionState, tuple[DroppedEdit, ...]]:
    """The state, whose open branch ends where somebody else than the model speaks in it, and all that was dropped.

    So is the end of a branch that is open again. The result of such a branch is another text, as is that of one that
    ends. Each fragment that lay in the old one is told.
    """
    if state.branches and (branch := state.branch) is not None:
        state = end_where_interrupted(state)
        if state.branch is None:
            others = (edit for edit in dropped if (edit.kind, edit.edit_id) != ("branch", branch.call_id))
            dropped = (*others, DroppedEdit("branch", branch.call_id, INTERRUPTED_NOW))
        elif before.branch is None or before.branch.call_id != branch.call_id:
            dropped = (*dropped, DroppedEdit("branch", branch.call_id, END_REMOVED))
    if not before.branches or state.fragments == before.fragments:
        return state, dropped
    known = {fragment.fragment_id for fragment in state.fragments} | {edit.edit_id for edit in dropped}
    lost = (dropped_fragment(f, OTHER_RESULT) for f in before.fragments if f.fragment_id not in known)
    return state, (*dropped, *lost)


def grows(state: SessionState, messages: Sequence[Message]) -> bool:
    """Whether a history is what the client holds of the session, word for word, and perhaps more behind it.

    Nearly every request brings that. Nothing has to be aligned, and nothing carried over.
    """
    if state.redacted or (state.entries and state.entries[-1].origin is Author.INTERNAL):
        return False
    held = [entry for entry in state.entries if entry.origin is not Author.INTERNAL]
    if len(messages) < len(held) or any(entry.sealed for entry in held):
        return False
    try:
        return all(entry.message == message for entry, message in zip(held, messages, strict=False))
    except RecursionError:
        return False


def _appended(state: SessionState, messages: Sequence[Message]) -> tuple[CarriedOver, int]:
    """The state with a history that `grows`, and how many of the messages it had. Entries take the client's objects."""
    sent = enumerate(messages)
    entries = [
        entry if entry.origin is Author.INTERNAL else replace(entry, message=next(sent)[1]) for entry in state.entries
    ]
    num_old = len(entries)
    entries += [
        TranscriptEntry(message, Author.CLIENT, digest_sent(index, message, state.digest_key))
        for index, message in sent
    ]
    new = tuple(range(num_old, len(entries)))
    ended = (entry.turn + 1 for entry in entries if entry.origin is Author.ANSWER)
    num_turns = max(state.num_turns, *ended, 0)
    appended = replace(state, entries=tuple(entries), num_turns=num_turns)
    return CarriedOver(appended, (), new), len(messages) - len(new)


def judged(
    entries: tuple[TranscriptEntry, ...], new: Collection[int], rule: ObservationRule
) -> tuple[TranscriptEntry, ...]:
    """The entries, with observations marked among the new ones. The old ones stay as they are."""
    found = [
        index
        for index in new
        if index > 0
        and entries[index].origin is Author.CLIENT
        and entries[index].message.get("role") == "user"
        and rule.takes(entries[index].message, entries[index - 1].message)
    ]
    if not found:
        return entries
    marked = list(entries)
    for index in found:
        marked[index] = replace(marked[index], is_observation=True)
    return tuple(marked)


def _num_of_parent(state: SessionState, history: MatchedHistory) -> int:
    if state.parent is None:
        return 0
    num_messages = state.parent.num_messages
    return sum(match is not None and match.is_known and match.old < num_messages for match in history.matches)


def results_with_calls(state: SessionState) -> SessionState:
    """The state in which each result shares the fate of its call: an observation is new, or a branch has ended."""
    if not state.omissions:
        return state
    messages = [entry.message for entry in state.entries]
    omissions = with_results(state.omissions, messages, state.observations, state.branches)
    return state if omissions is state.omissions else replace(state, omissions=omissions)


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
    key = state.digest_key
    sealed = seen is not message and digest_message(seen, key) != digest_message(message, key)
    digest = digest_normal_form(seen, key)
    entry = TranscriptEntry(message, Author.ANSWER, digest, state.num_turns, sealed=sealed)
    return replace(state, entries=(*state.entries, entry))


def end_turn(state: SessionState) -> SessionState:
    """The next internal entries belong to a new turn."""
    return replace(state, num_turns=state.num_turns + 1)
