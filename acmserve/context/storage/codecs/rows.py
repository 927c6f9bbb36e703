"""A session as rows: what each says, what it weighs, and which change from one save to the next.

    state    entries [e0 e1 e2 e3]      fragments [f0 f1]      [omissions, budget, ..]      hits, counters, key
                      |  |  |  |                    |  |        one row, or none
    rows             one row each                 one each

    before   entries [e0 e1 e2]         after   entries [e0 e1' e2 e3]         written: rows 1 and 3

Rows that are equal are not written again: a turn that appends two messages to a thousand writes two rows.

Decisions: a row is JSON in UTF-8 in which a lone surrogate stays one (clients do send them). NUL stands for itself
rather than for six characters, so that a redacted text is no larger than it was. It knows no file. Rows are read back
in `state.py`, equal to the byte.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from acmserve.context.alignment.redacted_text import RedactedText
from acmserve.context.eviction.budget_json import budget_value
from acmserve.context.session.fragment import Fragment
from acmserve.context.session.rollout.lines import rollout_rows, row_value
from acmserve.context.session.state import SearchHit, SessionState, TranscriptEntry
from acmserve.context.session.turns.history import NO_TURNS, TurnHistory
from acmserve.context.storage.codecs.branch import relations_value
from acmserve.context.storage.codecs.omissions import omissions_value
from acmserve.context.storage.codecs.redacted_text import redacted_value
from acmserve.context.storage.codecs.turns import num_turn_rows, turn_rows
from acmserve.context.transcript.call_arguments import ArgumentPart
from acmserve.context.transcript.message import Message, Place
from acmserve.context.transcript.omissions import EMPTY
from acmserve.errors import InvalidRequest

_NUL = b"\\u0000"
_T = TypeVar("_T")
_ELSEWHERE = {"entries", "fragments", "redacted", "hits", "num_ids", "num_turns", "digest_key", "rollout"}
_LIMITS = tuple(each.name for each in fields(SessionState) if each.name not in _ELSEWHERE)
"""What `limit_values` writes. A field that nobody has thought of here counts among them."""


def pack(value: object) -> bytes:
    """A JSON value as the bytes of a row."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest("messages", f"cannot be stored as JSON: {error}.") from None
    data = text.encode("utf-8", "surrogatepass")
    # Behind a second backslash it is no escape but text that looks like one. Such a row keeps its escapes.
    return data if b"\\" + _NUL in data else data.replace(_NUL, b"\0")


def unpack(data: object) -> Any:
    """The value of a row. Raises `ValueError` (or `TypeError`) when it is damaged."""
    if not isinstance(data, bytes):
        raise TypeError(f"a row holds {type(data).__name__}, not bytes")
    try:
        return json.loads(data.decode("utf-8", "surrogatepass"), strict=False)
    except RecursionError:
        raise ValueError("a row is nested too deep") from None


def entry_value(entry: TranscriptEntry) -> dict[str, Any]:
    """An entry as a JSON object."""
    return {
        "message": dict(entry.message),
        "origin": entry.origin.value,
        "digest": entry.digest.hex(),
        "turn": entry.turn,
        "sealed": entry.sealed,
    } | ({"observation": True} if entry.is_observation else {})


def fragment_rows(state: SessionState) -> tuple[RedactedText | Fragment, ...]:
    """What was ever redacted, which only grows, in front of the fragments."""
    return (*state.redacted, *state.fragments)


def fragment_value(fragment: RedactedText | Fragment) -> dict[str, Any]:
    """A fragment as a JSON object. A redacted text is {"redacted": [...]}.

    A piece is [entry, part, start, end]. The part of an argument is [call, step, step, ...].
    """
    if isinstance(fragment, RedactedText):
        return {"redacted": redacted_value(fragment)}
    return {
        "id": fragment.fragment_id,
        "role": fragment.role,
        "pieces": [[piece.place.entry, _part_value(piece.place), piece.start, piece.end] for piece in fragment.pieces],
        "num_tokens": fragment.num_tokens,
        "visibility": fragment.visibility.value,
        "shown": None if fragment.shown is None else list(fragment.shown),
        "focus": fragment.focus,
        "summaries": [list(summary) for summary in fragment.summaries],
        **({"waits": True} if fragment.waits else {}),
        **({"more": fragment.more} if fragment.more else {}),
    }


def limit_values(state: SessionState) -> list[dict[str, Any]]:
    """The budget, what is taken out, the branches and what is precomputed, as one JSON object. None without all that.

    Rows of earlier versions know no branches, so what there is none of is not written.
    """
    value = relations_value(state)
    if state.precompute is not None:
        value["precompute"] = state.precompute.as_dict()
    if state.observation_rule is not None:
        value["observations"] = state.observation_rule.as_json()
    if not value and state.omissions == EMPTY and state.budget is None:
        return []
    budget = None if state.budget is None else budget_value(state.budget)
    return [{"omissions": omissions_value(state.omissions), "budget": budget} | value]


def hit_value(hit: SearchHit) -> list[Any]:
    """A search result as [id, entry, part, start, end]."""
    return [hit.search_id, hit.place.entry, _part_value(hit.place), hit.start, hit.end]


@dataclass(frozen=True, slots=True)
class RowSizes:
    """Bytes of each entry, fragment, row of the rollout record and row of the turns, as JSON."""

    entries: tuple[int, ...] = ()
    fragments: tuple[int, ...] = ()
    rollout: tuple[int, ...] = ()
    turns: tuple[int, ...] = ()
    num_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        rows = (self.entries, self.fragments, self.rollout, self.turns)
        object.__setattr__(self, "num_bytes", sum(map(sum, rows)))


def sizes_of(state: SessionState, turns: TurnHistory) -> RowSizes:
    """What every row of a session weighs, measured anew."""
    return RowSizes(
        tuple(len(pack(entry_value(entry))) for entry in state.entries),
        tuple(len(pack(fragment_value(fragment))) for fragment in fragment_rows(state)),
        tuple(len(pack(row_value(row))) for row in rollout_rows(state.rollout)),
        _plan_turns(NO_TURNS, turns).sizes(()),
    )


@dataclass(frozen=True, slots=True)
class RowChange:
    """Rows to write, by position. Rows from `num_rows` on are removed."""

    rows: Mapping[int, bytes]
    num_rows: int

    def sizes(self, before: Sequence[int]) -> tuple[int, ...]:
        """Bytes of every row after the change."""
        kept = list(before[: self.num_rows])
        kept.extend(0 for _ in range(self.num_rows - len(kept)))
        for position, row in self.rows.items():
            kept[position] = len(row)
        return tuple(kept)


@dataclass(frozen=True, slots=True)
class StateChange:
    """What a save writes. `limits`, `hits`, `rollout` and `turns` are None where they are as before.

    `removes_text`: what was readable is so no more.
    """

    entries: RowChange
    fragments: RowChange
    limits: RowChange | None
    rollout: RowChange | None
    hits: bytes | None
    removes_text: bool
    turns: RowChange | None = None

    def sizes(self, before: RowSizes) -> RowSizes:
        """Bytes of every row after the change."""
        return RowSizes(
            self.entries.sizes(before.entries),
            self.fragments.sizes(before.fragments),
            before.rollout if self.rollout is None else self.rollout.sizes(before.rollout),
            before.turns if self.turns is None else self.turns.sizes(before.turns),
        )


def plan_change(old: SessionState, new: SessionState) -> StateChange:
    """Compare two states of a session. Raises `InvalidRequest` when a message holds what JSON cannot say."""
    entries = _plan_rows(old.entries, new.entries, entry_value)
    fragments = _plan_rows(fragment_rows(old), fragment_rows(new), fragment_value)
    is_limited = any(getattr(new, name) is not getattr(old, name) for name in _LIMITS)
    limits = _plan_rows(limit_values(old), limit_values(new), dict) if is_limited else None
    hits = None if new.hits == old.hits else pack([hit_value(hit) for hit in new.hits])
    is_recorded = new.rollout is not old.rollout
    rollout = _plan_rows(rollout_rows(old.rollout), rollout_rows(new.rollout), row_value) if is_recorded else None
    removes_text = (
        _removes_messages(old, new, entries)
        or not _summaries(old) <= _summaries(new)
        or new.rollout.events[: len(old.rollout.events)] != old.rollout.events
    )
    return StateChange(entries, fragments, limits, rollout, hits, removes_text)


def plan_turns(state: SessionState, old: TurnHistory, new: TurnHistory) -> StateChange:
    """Write what was recorded of the turns. The state is as before."""
    entries, fragments = (RowChange({}, len(rows)) for rows in (state.entries, fragment_rows(state)))
    return StateChange(entries, fragments, None, None, None, False, _plan_turns(old, new))


def with_turns(change: StateChange, old: TurnHistory, new: TurnHistory) -> StateChange:
    """A change that writes these turns, too."""
    return replace(change, turns=_plan_turns(old, new))


def plan_whole(state: SessionState, turns: TurnHistory) -> StateChange:
    """Write a session whole, whatever the file has of it. What it has goes, as text that is removed."""
    entries = _plan_rows((), state.entries, entry_value)
    fragments = _plan_rows((), fragment_rows(state), fragment_value)
    hits = pack([hit_value(hit) for hit in state.hits])
    limits = _plan_rows((), limit_values(state), dict)
    rollout = _plan_rows((), rollout_rows(state.rollout), row_value)
    return StateChange(entries, fragments, limits, rollout, hits, True, _plan_turns(NO_TURNS, turns))


def _plan_turns(old: TurnHistory, new: TurnHistory) -> RowChange:
    rows = {position: pack(value) for position, value in turn_rows(old, new).items()}
    return RowChange(rows, num_turn_rows(new))


def _plan_rows(old: Sequence[_T], new: Sequence[_T], value: Callable[[_T], dict[str, Any]]) -> RowChange:
    rows = {
        position: pack(value(item))
        for position, item in enumerate(new)
        if position >= len(old) or (item is not old[position] and item != old[position])
    }
    return RowChange(rows, len(new))


def _removes_messages(old: SessionState, new: SessionState, change: RowChange) -> bool:
    """A client that resends a message in slightly other words (see `message.py`) has removed nothing.

    It exchanges ids of calls in a sealed one. What else changes there was taken out, in whatever field it stood.
    """
    return len(new.entries) < len(old.entries) or any(
        not old.entries[position].digest
        or old.entries[position].digest != new.entries[position].digest
        or old.entries[position].message.get("content") != new.entries[position].message.get("content")
        or (
            new.entries[position].sealed
            and _without_ids(old.entries[position].message) != _without_ids(new.entries[position].message)
        )
        for position in change.rows
        if position < len(old.entries)
    )


def _without_ids(message: Message) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if isinstance(calls, list | tuple):
        calls = [{**call, "id": None} if isinstance(call, Mapping) else call for call in calls]
    return {**message, "tool_call_id": None, "tool_calls": calls}


def _summaries(state: SessionState) -> set[tuple[str, str, str]]:
    return {(f.fragment_id, focus, text) for f in state.fragments for focus, text in f.summaries}


def _part_value(place: Place) -> Any:
    return [place.part.call, *place.part.path] if isinstance(place.part, ArgumentPart) else place.part
