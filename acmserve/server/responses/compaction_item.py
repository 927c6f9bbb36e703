"""Compaction items: a summary, and what stays word for word beside it, in one item that the client keeps.

    a | b | c | compaction [S; c] | d | e                     as a client sends it, with what stood before or without
    user [S, c] | d | e                                       as the model sees it

The vendor's item is opaque, and so is ours (`options/compaction_content.py`). Decision: what stays word for word is in
the item itself. So a client may leave out what stood before, and the prompt is the same to the byte.

The item of `/v1/responses/compact` keeps nothing besides: the vendor's answer has the user's messages in front of it,
and these stay.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from acmserve.context.eviction.compact import HEAD
from acmserve.errors import InvalidRequest
from acmserve.server.options.compaction_content import COMPACTION, is_compaction, read_content, write_content
from acmserve.server.responses.items import role_of


def compaction_item(
    summary: str, kept: Sequence[Any], *, covers_all: bool, session_id: str | None = None
) -> dict[str, Any]:
    """The item. `covers_all`: it takes the place of everything in front of it. `session_id`: where it was made."""
    content = {"summary": summary, "kept": list(kept), "covers_all": covers_all, "session": session_id}
    return {"type": COMPACTION, "id": f"cmp_{uuid.uuid4().hex}", "encrypted_content": write_content(content)}


def has_compaction_item(items: object) -> bool:
    """Whether there is such an item."""
    return isinstance(items, list) and any(map(is_compaction, items))


def expand(items: Sequence[Any]) -> list[Any]:
    """The items as the model is to see them. Raises InvalidRequest for an item that was not made here."""
    expanded: list[Any] = []
    for index, item in enumerate(items):
        if not is_compaction(item):
            expanded.append(item)
            continue
        content = read_content(item)
        if content is None:
            field = f"input[{index}].encrypted_content"
            raise InvalidRequest(field, "is no compaction of this server.", "Send the item back as it came.")
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
