"""The edits of a context map that a model may ask for: ADD, DELETE, REPLACE.

The model is the Cartographer of PEEK (arXiv 2605.19932).

    {"type": "ADD", "section": "context_roadmap", "content": "..."}      a new id
    {"type": "REPLACE", "item_id": "cr-00001", "content": "..."}         the same id, the same score
    {"type": "DELETE", "item_id": "rr-00003"}                            the id is never given again

Each is judged by itself: one that makes no sense is noted with the reason and changes nothing.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

from acmserve.context.maps.history import OperationNote, shorten
from acmserve.context.maps.item import MapItem, one_line, read_item_text
from acmserve.context.maps.map import ContextMap
from acmserve.context.maps.rules import MapRules
from acmserve.context.maps.section import BY_NAME
from acmserve.errors import InvalidRequest
from acmserve.validation import echo_json

MAX_OPERATIONS = 64
_MAX_NOTE_CHARS = 200


def apply_operations(
    context_map: ContextMap, operations: Sequence[object], seen: ContextMap, rules: MapRules
) -> tuple[ContextMap, tuple[OperationNote, ...]]:
    """Carry out the operations one after the other. The map may exceed its budget afterwards.

    `seen` is the map that the model was shown: an item that a person changed since then is left alone. Of more than
    `MAX_OPERATIONS` the rest is refused at once.
    """
    before = {item.item_id: item.text for item in seen.items}
    by_hand = {item.item_id for item in context_map.items if before.get(item.item_id) != item.text}
    notes = []
    for operation in operations[:MAX_OPERATIONS]:
        try:
            context_map = _apply(context_map, operation, by_hand, rules)
            notes.append(_note(operation))
        except InvalidRequest as error:
            notes.append(_note(operation, shorten(str(error), _MAX_NOTE_CHARS)))
    num_left = len(operations) - MAX_OPERATIONS
    if num_left > 0:
        reason = f"{num_left:,} more operations; at most {MAX_OPERATIONS} are carried out in one update."
        notes.append(OperationNote("", refused=reason))
    return context_map, tuple(notes)


def _apply(context_map: ContextMap, operation: object, by_hand: Container[str], rules: MapRules) -> ContextMap:
    if not isinstance(operation, Mapping):
        raise InvalidRequest("operation", f"{echo_json(operation)} is no object.")
    kind = operation.get("type")
    if kind == "ADD":
        return _add(context_map, operation, rules)
    if kind not in ("DELETE", "REPLACE"):
        raise InvalidRequest("type", f"{echo_json(kind)} is none of ADD, DELETE, REPLACE.")
    old = _item(context_map, operation.get("item_id"))
    if old.item_id in by_hand:
        raise InvalidRequest("item_id", f"{old.item_id} was changed by hand meanwhile.")
    if kind == "DELETE":
        return context_map.without([old])
    text = _content(operation, rules)
    _check_new(context_map.without([old]), text)
    return _within(context_map.replaced(replace(old, text=text)), old.number, rules)


def _add(context_map: ContextMap, operation: Mapping[str, Any], rules: MapRules) -> ContextMap:
    name = operation.get("section")
    if not isinstance(name, str) or name not in context_map.sections:
        raise InvalidRequest("section", f"{echo_json(name)} is none of {', '.join(context_map.sections)}.")
    text = _content(operation, rules)
    _check_new(context_map, text)
    added = context_map.added(BY_NAME[name], text)
    return _within(added, added.last_number, rules)


def _content(operation: Mapping[str, Any], rules: MapRules) -> str:
    text = read_item_text(operation.get("content"), "content")
    rules.check_text(text, "content")
    return text


def _check_new(context_map: ContextMap, text: str) -> None:
    for item in context_map.items:
        if item.text.casefold() == text.casefold():
            raise InvalidRequest("content", f"is in the map already, as {item.item_id}.")


def _within(context_map: ContextMap, number: int, rules: MapRules) -> ContextMap:
    """Refuse an item that would not fit if it were alone: the Evictor would throw out everything else for nothing."""
    alone = replace(context_map, items=tuple(item for item in context_map.items if item.number == number))
    if not rules.fits(alone):
        raise InvalidRequest("content", f"exceeds the budget of {context_map.budget} tokens alone.")
    return context_map


def _item(context_map: ContextMap, item_id: object) -> MapItem:
    item = context_map.item(item_id.strip("[] ")) if isinstance(item_id, str) and len(item_id) < 40 else None
    if item is None:
        raise InvalidRequest("item_id", f"there is no item {echo_json(item_id)}.")
    return item


def _note(operation: object, refused: str = "") -> OperationNote:
    """The operation as it was asked for, every text of it cut to a length that can be kept."""
    if not isinstance(operation, Mapping):
        return OperationNote("", refused=refused)

    def fields(name: str, max_chars: int) -> str:
        value = operation.get(name)
        return one_line(shorten(value, max_chars)) if isinstance(value, str) else ""

    max_chars = _MAX_NOTE_CHARS if refused else 4 * _MAX_NOTE_CHARS
    return OperationNote(
        fields("type", 20), fields("item_id", 40), fields("section", 40), fields("content", max_chars), refused
    )
