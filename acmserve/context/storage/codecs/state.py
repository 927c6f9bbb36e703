"""A session's state as JSON, whole or row by row.

    state    entries [e0 e1 e2 e3]      fragments [f0 f1]      [omissions, budget, ..]      hits, counters, key
                      |  |  |  |                    |  |        one row, or none
    rows             one row each                 one each     read back equal, to the byte

Decisions: a row is JSON in UTF-8 in which a lone surrogate stays one (clients do send them). NUL stands for itself
rather than for six characters, so that a redacted text is no larger than it was. What a save writes says
`changes.py`. It knows no file. `where` names one for errors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from acmserve.context.alignment.redacted_text import RedactedText
from acmserve.context.eviction.budget_json import budget_value, parse_budget
from acmserve.context.eviction.registry import known
from acmserve.context.session.fragment import Fragment, Piece, Visibility
from acmserve.context.session.precompute_options import parse_precompute
from acmserve.context.session.rollout.lines import record_from, rollout_rows, row_value
from acmserve.context.session.state import Author, SearchHit, SessionState, TranscriptEntry
from acmserve.context.storage.codecs.branch import relations_from, relations_value
from acmserve.context.storage.codecs.omissions import omissions_from, omissions_value
from acmserve.context.storage.codecs.redacted_text import redacted_from, redacted_value
from acmserve.context.transcript.call_arguments import ArgumentPart
from acmserve.context.transcript.message import Place
from acmserve.context.transcript.observations import parse_observations
from acmserve.context.transcript.omissions import EMPTY
from acmserve.errors import AcmError, IntegrityError, InvalidRequest

VERSION = 4
FIRST_VERSION = 1
REMEDY = "Restore it from a backup, or move it away to start without the sessions in it."

_NUL = b"\\u0000"
_MAX_KEY_BYTES = 64
# Keys as files of acmserve 0.1 spell them.
_RENAMED = {"shed": "omissions", "ahead": "precompute"}


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


def state_value(state: SessionState) -> dict[str, Any]:
    """The whole state as a JSON object."""
    return {
        "version": VERSION,
        "entries": [entry_value(entry) for entry in state.entries],
        "fragments": [fragment_value(fragment) for fragment in fragment_rows(state)],
        "limits": limit_values(state),
        "rollout": [row_value(row) for row in rollout_rows(state.rollout)],
        "hits": [hit_value(hit) for hit in state.hits],
        "num_ids": state.num_ids,
        "num_turns": state.num_turns,
        "digest_key": state.digest_key.hex(),
    }


def state_from(value: Any, where: str) -> SessionState:
    """The state that `state_value` made a value of, now or in an older version. `where` says where it comes from.

    Raises `AcmError` naming `where` when the value is of another version, or damaged.
    """
    try:
        version = _field(value, "version", int)
        if not FIRST_VERSION <= version <= VERSION:
            raise AcmError(f"{where} has version {version}, this acmserve reads version {VERSION}. {REMEDY}")
        key = bytes.fromhex(_field(value, "digest_key", str))
        if not 0 < len(key) <= _MAX_KEY_BYTES:
            raise ValueError(f"digest_key has {len(key)} bytes")
        fragments = [_is(item, "fragment", dict) for item in _field(value, "fragments", list)]
        limits = _limits(_field(value, "limits", list) if version > FIRST_VERSION else [])
        state = SessionState(
            entries=tuple(_entry(item) for item in _field(value, "entries", list)),
            fragments=tuple(_fragment(item) for item in fragments if "redacted" not in item),
            redacted=tuple(redacted_from(item["redacted"]) for item in fragments if "redacted" in item),
            hits=tuple(_hit(item) for item in _field(value, "hits", list)),
            num_ids=_field(value, "num_ids", int),
            num_turns=_field(value, "num_turns", int),
            digest_key=key,
            rollout=record_from(_is(value.get("rollout", []), "rollout", list)),
            **limits,
        )
        state.check_integrity()
    except (ValueError, TypeError, KeyError, IntegrityError) as error:
        raise damaged(where, error) from None
    return state


def _check_loaded(policy: object) -> None:
    """Raise `AcmError` for a policy of another package that this server was not started with."""
    if isinstance(policy, str) and ":" in policy and policy not in known():
        remedy = f"Start the server with --eviction-policy {policy}."
        raise AcmError(f"A stored session has a budget of the policy {policy!a}, which is not loaded. {remedy}")


def _limits(rows: Sequence[Any]) -> dict[str, Any]:
    """The fields of a state that `limit_values` wrote."""
    if not rows:
        return {}
    [row] = ({_RENAMED.get(key, key): value for key, value in row.items()} for row in rows)
    budget = _field(row, "budget", dict, type(None))
    if budget is not None:
        _check_loaded(budget.get("policy"))
        budget = parse_budget(budget, _is(budget.get("max_tokens"), "max_tokens", int))
    return {
        "omissions": omissions_from(_field(row, "omissions", dict)),
        "budget": budget,
        **relations_from(row),
        "precompute": None if "precompute" not in row else parse_precompute(_is(row["precompute"], "precompute", dict)),
        "observation_rule": parse_observations(row["observations"], "observations") if "observations" in row else None,
    }


def damaged(where: str, error: Exception) -> AcmError:
    """The error of a value that cannot be read, with the remedy."""
    return AcmError(f"{where} is damaged: {error}. {REMEDY}")


def _entry(value: Any) -> TranscriptEntry:
    return TranscriptEntry(
        message=_field(value, "message", dict),
        origin=Author(_field(value, "origin", str)),
        digest=bytes.fromhex(_field(value, "digest", str)),
        turn=_field(value, "turn", int),
        sealed=_field(value, "sealed", bool),
        is_observation=_is(value.get("observation", False), "observation", bool),
    )


def _fragment(value: Any) -> Fragment:
    shown = _field(value, "shown", list, type(None))
    return Fragment(
        fragment_id=_field(value, "id", str),
        role=_field(value, "role", str),
        pieces=tuple(_piece(item) for item in _field(value, "pieces", list)),
        num_tokens=_field(value, "num_tokens", int),
        visibility=Visibility(_field(value, "visibility", str)),
        shown=None if shown is None else tuple(_is(text, "shown", str) for text in shown),
        focus=_field(value, "focus", str, type(None)),
        summaries=tuple(_summary(item) for item in _field(value, "summaries", list)),
        waits=_is(value.get("waits", False), "waits", bool),
        more=_is(value.get("more", ""), "more", str),
    )


def _summary(value: Any) -> tuple[str, str]:
    focus, text = _is(value, "summary", list)
    return _is(focus, "focus", str), _is(text, "summary", str)


def _piece(value: Any) -> Piece:
    entry, part, start, end = _is(value, "piece", list)
    return Piece(_place(entry, part), _is(start, "start", int), _is(end, "end", int))


def _hit(value: Any) -> SearchHit:
    search_id, entry, part, start, end = _is(value, "hit", list)
    place = _place(entry, part)
    return SearchHit(_is(search_id, "id", str), place, _is(start, "start", int), _is(end, "end", int))


def _place(entry: Any, part: Any) -> Place:
    if type(part) is list and part:
        path = tuple(_is(step, "step", str, int) for step in part[1:])
        return Place(_is(entry, "entry", int), ArgumentPart(_is(part[0], "call", int), path))
    return Place(_is(entry, "entry", int), _is(part, "part", int, type(None)))


def _part_value(place: Place) -> Any:
    return [place.part.call, *place.part.path] if isinstance(place.part, ArgumentPart) else place.part


def _field(value: Any, name: str, *kinds: type) -> Any:
    if name not in _is(value, f"what has {name!r}", dict):
        raise ValueError(f"{name!r} is missing")
    return _is(value[name], name, *kinds)


def _is(value: Any, name: str, *kinds: type) -> Any:
    """`value`, when it is of one of these very types (True is no number)."""
    if type(value) not in kinds:
        raise TypeError(f"{name} is {type(value).__name__}, not {' or '.join(kind.__name__ for kind in kinds)}")
    return value
