"""The content of a compaction: its client keeps it, sends it back, and does not look into it.

    /v1/responses   {"summary", "kept", "covers_all", "session"} --write--> "acm1.eyJzdW1..." --read--> the same
    /v1/messages    {"session"}, beside the summary that the client sees --> "acm1.eyJzZXN..."

The vendors' content is a secret. Ours is JSON in another spelling, for the client had all of it. `session` is the id of
the session that the compaction was made in. So a client that names no session is found by it, whatever else it has
dropped. An id proves nothing that a request could not say in `session_id`: it is looked up under the request's own
tenant.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from typing import Any

COMPACTION = "compaction"
CONTENT = "encrypted_content"
_VERSION = "acm1."


def is_compaction(item: object) -> bool:
    """Whether an item or a block is a compaction, whoever made it."""
    return isinstance(item, Mapping) and item.get("type") == COMPACTION


def write_content(content: Mapping[str, Any]) -> str:
    """The `encrypted_content` of an item or a block."""
    written = base64.urlsafe_b64encode(json.dumps(content, ensure_ascii=False).encode()).decode()
    return f"{_VERSION}{written}"


def read_content(item: Mapping[str, Any]) -> dict[str, Any] | None:
    """The content of an item. None where it was not made here."""
    content = _decoded(item)
    if not isinstance(content.get("summary"), str) or not isinstance(content.get("kept"), list):
        return None
    if "covers_all" not in content:
        return None
    return {"session": None, **content, "covers_all": bool(content["covers_all"])}


def session_in(body: object) -> str | None:
    """The session that the last compaction of a request was made in. None where there is none, or nobody says."""
    found = list(_compactions(body)) if isinstance(body, Mapping) else []
    session_id = _decoded(found[-1]).get("session") if found else None
    return session_id if isinstance(session_id, str) else None


def _compactions(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Items of /v1/responses, and blocks of /v1/messages."""
    items, messages = body.get("input"), body.get("messages")
    yield from filter(is_compaction, items if isinstance(items, list) else ())
    for message in messages if isinstance(messages, list) else ():
        blocks = message.get("content") if isinstance(message, Mapping) else None
        yield from filter(is_compaction, blocks if isinstance(blocks, list) else ())


def _decoded(item: Mapping[str, Any]) -> dict[str, Any]:
    """What an item or a block has in it. Nothing where it was not made here."""
    written = item.get(CONTENT)
    if not isinstance(written, str) or not written.startswith(_VERSION):
        return {}
    try:
        content = json.loads(base64.urlsafe_b64decode(written.removeprefix(_VERSION)))
    except (ValueError, binascii.Error, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
