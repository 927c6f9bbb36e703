"""A context map as a JSON object, and back, equal.

It knows no file. `where` names the place for errors. Values come from our own file, so anything odd is damage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from acmserve.context.maps.history import MapChange, OperationNote
from acmserve.context.maps.item import ID_PATTERN, MapItem
from acmserve.context.maps.map import ContextMap
from acmserve.context.maps.section import BY_SLUG, SECTION_NAMES
from acmserve.context.storage.codecs.state import damaged
from acmserve.errors import IntegrityError

_NUMBERS = ("last_number", "budget", "evolve_steps", "num_steps", "version")
_SPENT = ("num_read_tokens", "num_written_tokens")
"""Older files lack them."""


def map_value(context_map: ContextMap) -> dict[str, Any]:
    """The map as a JSON object."""
    return {
        "items": [_item_value(item) for item in context_map.items],
        **{name: getattr(context_map, name) for name in (*_NUMBERS, *_SPENT)},
        "pinned": context_map.pinned,
        "sections": list(context_map.sections),
        "history": [change_value(change) for change in context_map.history],
    }


def change_value(change: MapChange) -> dict[str, Any]:
    """One change of the history as a JSON object."""
    value = {name: getattr(change, name) for name in MapChange.__slots__}
    return value | {
        "tags": dict(change.tags),
        "operations": [asdict(note) for note in change.operations],
        "evicted": [_item_value(item) for item in change.evicted],
        "ignored": list(change.ignored),
    }


def map_from(value: Any, where: str) -> ContextMap:
    """The map that `map_value` made a value of. Raises `AcmError` naming `where` when the value is damaged."""
    try:
        numbers = {name: _number(value[name], name) for name in _NUMBERS}
        spent = {name: _number(value.get(name, 0), name) for name in _SPENT}
        context_map = ContextMap(
            items=tuple(_item(item) for item in value["items"]),
            pinned=value["pinned"] is True,
            sections=tuple(value.get("sections", SECTION_NAMES)),
            history=tuple(_change(change) for change in value["history"]),
            **numbers,
            **spent,
        )
        context_map.check_integrity()
    except (ValueError, TypeError, LookupError, AttributeError, IntegrityError) as error:
        raise damaged(where, error) from None
    return context_map


def _item_value(item: MapItem) -> dict[str, Any]:
    return {"id": item.item_id, "text": item.text, "score": item.score}


def _item(value: Mapping[str, Any]) -> MapItem:
    match = ID_PATTERN.fullmatch(value["id"])
    if match is None:
        raise ValueError(f"{value['id']!a} is no id")
    return MapItem(BY_SLUG[match[1]], int(match[2]), str(value["text"]), _number(value["score"], "score"))


def _change(value: Mapping[str, Any]) -> MapChange:
    given = dict(value) | {
        "tags": tuple(value["tags"].items()),
        "operations": tuple(OperationNote(**note) for note in value["operations"]),
        "evicted": tuple(_item(item) for item in value["evicted"]),
        "ignored": tuple(value["ignored"]),
    }
    return MapChange(**given)


def _number(value: Any, name: str) -> int:
    if type(value) is not int:
        raise TypeError(f"{name} is {type(value).__name__}, not int")
    return value
