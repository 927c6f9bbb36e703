"""What the two models that keep a context map answer, read without trust and in bounded time.

    Distiller       {"diagnosis": str, "item_tags": {id: tag}, "cache_candidates": [{"section", "value", ...}]}
    Cartographer    {"reasoning": str, "operations": [{"type": ...}]}
    both at once    {"diagnosis": str, "item_tags": {id: tag}, "operations": [{"type": ...}]}

Guided decoding makes these shapes, but a map may be kept by a server that does not guide, or an answer may be cut off.
An answer that is not the object that was asked for is refused as a whole. An entry inside it that makes no sense (an
unknown id, a tag that does not exist) is passed over and named. An answer that was cut off in its list, which is last,
keeps the entries in front of the cut. Tags may be left out: none are asked for where the map is empty.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acmserve.context.maps.history import shorten
from acmserve.context.maps.item import SCORES, one_line
from acmserve.context.maps.map import ContextMap
from acmserve.errors import InvalidRequest
from acmserve.validation import echo_json

MAX_ANSWER_CHARS = 65_536
MAX_CANDIDATES = 32
MAX_IGNORED = 20
_MAX_CANDIDATE_CHARS = 2000
_NEXT_ENTRY = re.compile(r"[\s,]*\{")
_CUT = "what was cut off"


@dataclass(frozen=True, slots=True)
class Distilled:
    """What the Distiller found. `tags` name items of the map. `candidates` are clean JSON for the Cartographer."""

    diagnosis: str
    tags: tuple[tuple[str, str], ...]
    candidates: tuple[Mapping[str, str], ...]
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Charted:
    """What the Cartographer wants. Its operations are judged one by one when they are applied."""

    reasoning: str
    operations: Sequence[object]
    ignored: tuple[str, ...] = ()


def read_distilled(text: str, context_map: ContextMap) -> Distilled:
    """The Distiller's answer. Raises `InvalidRequest` with the field `distiller` where it is not what was asked."""
    answer, cut = _read_object(text, "distiller", {"diagnosis": str, "item_tags": dict, "cache_candidates": list})
    tags, ignored = _tags(answer["item_tags"], context_map)
    candidates = []
    for given in answer["cache_candidates"][:MAX_CANDIDATES]:
        candidate = _candidate(given, context_map.sections)
        if candidate is None:
            ignored.append(f"candidate {echo_json(given)}")
        else:
            candidates.append(candidate)
    num_left = len(answer["cache_candidates"]) - MAX_CANDIDATES
    if len(ignored) > MAX_IGNORED:
        ignored[MAX_IGNORED:] = [f"{len(ignored) - MAX_IGNORED:,} more"]
    if num_left > 0:
        ignored.append(f"{num_left:,} more candidates")
    return Distilled(_text(answer["diagnosis"]), tags, tuple(candidates), (*ignored, *cut))


def read_charted(text: str) -> Charted:
    """The Cartographer's answer. Raises `InvalidRequest`, field `cartographer`, where it is not what was asked."""
    answer, cut = _read_object(text, "cartographer", {"reasoning": str, "operations": list})
    return Charted(_text(answer["reasoning"]), answer["operations"], cut)


def read_at_once(text: str, context_map: ContextMap) -> tuple[Distilled, Charted]:
    """The one answer of both. Raises `InvalidRequest` with the field `update` where it is not what was asked."""
    answer, cut = _read_object(text, "update", {"diagnosis": str, "item_tags": dict, "operations": list})
    tags, ignored = _tags(answer["item_tags"], context_map)
    distilled = Distilled(_text(answer["diagnosis"]), tags, (), tuple(ignored[:MAX_IGNORED]))
    return distilled, Charted("", answer["operations"], cut)


def _tags(given: Mapping[str, object], context_map: ContextMap) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    """Tags of items that there are, and what makes no sense. A tag that is given under two spellings counts once."""
    known = {item.item_id for item in context_map.items}
    tags, ignored = {}, []
    for item_id, tag in given.items():
        name = item_id.strip("[] ")
        if name in known and isinstance(tag, str) and tag in SCORES:
            tags[name] = tag
        else:
            ignored.append(f"tag {echo_json(tag)} of {echo_json(item_id)}")
    return tuple(tags.items()), ignored


def _candidate(given: object, sections: Collection[str]) -> Mapping[str, str] | None:
    if not isinstance(given, Mapping) or not isinstance(given.get("section"), str) or given["section"] not in sections:
        return None
    texts = {name: given.get(name, "") for name in ("value", "transferability", "rationale")}
    if not all(isinstance(text, str) for text in texts.values()) or not texts["value"].strip():
        return None
    return {"section": given["section"]} | {
        name: one_line(shorten(text, _MAX_CANDIDATE_CHARS)) for name, text in texts.items()
    }


def _text(value: str) -> str:
    return one_line(shorten(value))


def _read_object(text: str, who: str, fields: Mapping[str, type]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The JSON object of an answer, also out of a code fence or behind some words of thought, and what was cut off.

    The last of the `fields` is the list in which it may have been.
    """
    if len(text) > MAX_ANSWER_CHARS:
        raise InvalidRequest(who, f"answered {len(text):,} characters; at most {MAX_ANSWER_CHARS:,} are read.")
    start, end = text.find("{", text.rfind("</think>") + 1), text.rfind("}") + 1
    if start < 0 or end <= start:
        raise InvalidRequest(who, f"answered no JSON object: {echo_json(text)}.")
    cut: tuple[str, ...] = ()
    try:
        value = json.loads(text[start:end], strict=False)
    except (ValueError, RecursionError) as error:
        value, cut = _before_the_cut(text[start:], list(fields)[-1]), (_CUT,)
        if value is None:
            raise InvalidRequest(who, f"answered something that is not JSON: {shorten(str(error), 200)}.") from None
    value = {"item_tags": {}} | value
    for name, kind in fields.items():
        if not isinstance(value.get(name), kind):
            found = type(value[name]).__name__ if name in value else "nothing"
            raise InvalidRequest(who, f"answered JSON in which {name} is {found}, not {kind.__name__}.")
    return value, cut


def _before_the_cut(text: str, last: str) -> dict[str, Any] | None:
    """An object that ends inside its list `last`, with the entries that are whole. None if there are none.

    A quote inside of a JSON text has a backslash in front, so the name is found where it is a name.
    """
    begun = re.search(rf'"{last}"\s*:\s*\[', text)
    if begun is None:
        return None
    try:
        value: dict[str, Any] = json.loads(text[: begun.end()] + "]}", strict=False)
    except (ValueError, RecursionError):
        return None
    entries = list(_whole_entries(text, begun.end()))
    return {**value, last: entries} if entries else None


def _whole_entries(text: str, at: int) -> Iterator[object]:
    """The entries of a list that begin at `at`, up to the first one that is no JSON."""
    decoder = json.JSONDecoder(strict=False)
    while entry := _NEXT_ENTRY.match(text, at):
        try:
            found, at = decoder.raw_decode(text, entry.end() - 1)
        except (ValueError, RecursionError):
            return
        yield found
