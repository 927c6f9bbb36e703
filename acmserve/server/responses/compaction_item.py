"""Compaction items: a summary, and what stays word for word beside it, in one item that the client keeps.

    a | b | c | compaction [S; c] | d | e                     as a client sends it, with what stood before or without
    user [S, c] | d | e                                       as the model sees it

The vendor's item is opaque, and so is ours: its content is a digest for nobody, only JSON that clients do not look
into. It is not encrypted, for the client had all of it. Decision: what stays word for word is in the item itself. So a
client may leave out what stood before, and the prompt is the same to the byte.

The item of `/v1/responses/compact` keeps nothing besides: the vendor's answer has the user's messages in front of it,
and these stay.
"""

from __future__ import annotations

import base64
import binascii
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from acmserve.context.eviction.compact import HEAD
from acmserve.errors import InvalidRequest
from acmserve.server.responses.items import role_of

COMPACTION = "compaction"
_VERSION = "acm1."


def compaction_item(summary: str, kept: Sequence[Any], *, covers_all: bool) -> dict[str, Any]:
    """The item. `covers_all`: it takes the place of everything in front of it."""
    content = {"summary": summary, "kept": list(kept), "covers_all": covers_all}
    written = base64.urlsafe_b64encode(json.dumps(content, ensure_ascii=False).encode()).decode()
    return {"type": COMPACTION, "id": f"cmp_{uuid.uuid4().hex}", "encrypted_content": f"{_VERSION}{written}"}


def has_compaction_item(items: object) -> bool:
    """Whether there is such an item."""
    return isinstance(items, list) and any(_is_compaction(item) for item in items)


def expand(items: Sequence[Any]) -> list[Any]:
    """The items as the model is to see them. Raises InvalidRequest for an item that was not made here."""
    expanded: list[Any] = []
    for index, item in enumerate(items):
        if not _is_compaction(item):
            expanded.append(item)
            continue
        content = _read(item, f"input[{index}].encrypted_content")
        if content["covers_all"]:
            expanded = []
        expanded += _standing(content["summary"], content["kept"])
    return expanded


def _standing(summary: str, kept: Sequence[Any]) -> list[Any]:
    """The summary behind what is kept of the instructions, at the head of the user's message where there is one."""
    start = next((i for i, item in enumerate(kept) if role_of(item) not in ("system", "developer")), len(kept))
    head, rest = list(kept[:start]), list(kept[start:])
    part = {"type": "input_text", "text": f"{HEAD}\n{summary}"}
    if rest and role_of(rest[0]) == "user":
        content = rest[0].get("content")
        own = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
        if isinstance(own, list):
            return [*head, {**rest[0], "content": [part, *own]}, *rest[1:]]
    return [*head, {"type": "message", "role": "user", "content": [part]}, *rest]


def _read(item: Mapping[str, Any], field: str) -> dict[str, Any]:
    written = item.get("encrypted_content")
    try:
        if not isinstance(written, str) or not written.startswith(_VERSION):
            raise ValueError
        content = json.loads(base64.urlsafe_b64decode(written.removeprefix(_VERSION)))
        if isinstance(content["summary"], str) and isinstance(content["kept"], list):
            return {"covers_all": bool(content["covers_all"]), **content}
    except (ValueError, KeyError, TypeError, binascii.Error, RecursionError):
        pass
    raise InvalidRequest(field, "is no compaction of this server.", "Send the item back as it came.")


def _is_compaction(item: object) -> bool:
    return isinstance(item, Mapping) and item.get("type") == COMPACTION
