"""How long the texts of an answer may be, so that its JSON ends before the answer is cut off.

    max_tokens x 3 characters
    |-- names, white space, a tag for every item --|-- diagnosis: 1/4 --|-- entries: the rest, as many as have room --|

A small model goes on with a text until it is stopped. An answer that is cut off is no JSON, and its whole query teaches
nothing. So guided decoding is told where each text ends. A model that ends by itself meets no bound of these.

Pure. It knows JSON schemas, not what they ask for. Three characters a token is what small models write in English. In
other scripts a token may have fewer, and such an answer may be cut off as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acmserve.context.maps.item import MAX_ITEM_CHARS

_CHARS_PER_TOKEN = 3
_TEXT_SHARE = 4
# What an entry says becomes an item, of about 80 tokens at most. That is four shares, and each reason has one.
_MIN_SHARE_CHARS = 80
_NUM_OWN_SHARES = 4
_MIN_TEXT_CHARS = 40
# White space around a name and its value may be six tokens: guided decoding lets a model lay its JSON out.
_NAME_CHARS = len('"": ,') + 6 * _CHARS_PER_TOKEN


def bounded(schema: Mapping[str, Any], max_tokens: int) -> dict[str, Any]:
    """The schema of an object whose free texts and lists fit an answer of `max_tokens` tokens.

    A list keeps its own `maxItems` where that is less. Below some 100 tokens nothing fits, and the bounds stay at
    their least.
    """
    properties: Mapping[str, Mapping[str, Any]] = schema["properties"]
    room = max_tokens * _CHARS_PER_TOKEN - _fixed_chars(schema)
    lists = [name for name, one in properties.items() if one["type"] == "array"]
    per_text = room // _TEXT_SHARE if lists else room
    num_texts = sum(_is_free(one) for one in properties.values())
    per_list = (room - num_texts * per_text) // max(1, len(lists))
    made: dict[str, Any] = {}
    for name, one in properties.items():
        if name in lists:
            made[name] = _bounded_list(one, per_list)
        else:
            made[name] = _bounded_text(one, per_text) if _is_free(one) else one
    return {**schema, "properties": made}


def _bounded_list(schema: Mapping[str, Any], room: int) -> dict[str, Any]:
    entry = schema["items"]
    kinds = entry.get("anyOf", [entry])
    least = max(_fixed_chars(one) + _MIN_SHARE_CHARS * _num_shares(one) for one in kinds)
    num_entries = max(1, min(schema["maxItems"], room // least))
    made = [_bounded_entry(one, room // num_entries) for one in kinds]
    return {**schema, "maxItems": num_entries, "items": {**entry, "anyOf": made} if "anyOf" in entry else made[0]}


def _bounded_entry(schema: Mapping[str, Any], room: int) -> dict[str, Any]:
    """One entry of a list. Its first text is what it says, and has most room, up to an item's length."""
    share = (room - _fixed_chars(schema)) // max(1, _num_shares(schema))
    made, num_shares = {}, _NUM_OWN_SHARES
    for name, one in schema["properties"].items():
        if _is_free(one):
            made[name] = _bounded_text(one, min(MAX_ITEM_CHARS, num_shares * share))
            num_shares = 1
        else:
            made[name] = one
    return {**schema, "properties": made}


def _num_shares(schema: Mapping[str, Any]) -> int:
    num_texts = sum(_is_free(one) for one in schema["properties"].values())
    return num_texts + _NUM_OWN_SHARES - 1 if num_texts else 0


def _bounded_text(schema: Mapping[str, Any], room: int) -> dict[str, Any]:
    return {**schema, "maxLength": max(_MIN_TEXT_CHARS, room)}


def _is_free(schema: Mapping[str, Any]) -> bool:
    return schema["type"] == "string" and "enum" not in schema


def _fixed_chars(schema: Mapping[str, Any]) -> int:
    """Characters of an object that hold no free text, with its longest words. Lists are counted as empty."""
    if schema["type"] != "object":
        return max((len(word) for word in schema.get("enum", ())), default=0) + len('""')
    return sum(len(name) + _NAME_CHARS + _fixed_chars(one) for name, one in schema["properties"].items()) + len("{}")
