"""The content of a compaction item of /v1/responses: its client keeps it, sends it back, and does not look into it.

    {"summary", "kept", "covers_all", "session"} --write--> "acm1.eyJzdW1..." --read--> the same

The vendor's content is a secret. Ours is JSON in another spelling, for the client had all of it. `session` is the id of
the session that the item was made in. So a client that names no session is found by it, whatever else it has dropped.
An id proves nothing that a request could not say in `session_id`: it is looked up under the request's own tenant.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

COMPACTION = "compaction"
_VERSION = "acm1."


def is_compaction(item: object) -> bool:
    """Whether an item is a compaction, whoever made it."""
    return isinstance(item, Mapping) and item.get("type") == COMPACTION


def write_content(content: Mapping[str, Any]) -> str:
    """The `encrypted_content` of an item."""
    written = base64.urlsafe_b64encode(json.dumps(content, ensure_ascii=False).encode()).decode()
    return f"{_VERSION}{written}"


def read_content(item: Mapping[str, Any]) -> dict[str, Any] | None:
    """The content of an item. None where it was not made here."""
    written = item.get("encrypted_content")
    if not isinstance(written, str) or not written.startswith(_VERSION):
        return None
    try:
        content: dict[str, Any] = json.loads(base64.urlsafe_b64decode(written.removeprefix(_VERSION)))
        if isinstance(content["summary"], str) and isinstance(content["kept"], list):
            return {"session": None, **content, "covers_all": bool(content["covers_all"])}
    except (ValueError, KeyError, TypeError, binascii.Error, RecursionError):
        return None
    return None


def session_in(body: object) -> str | None:
    """The session that the last compaction item of a request was made in. None where there is none, or nobody says."""
    items = body.get("input") if isinstance(body, Mapping) else None
    found = [item for item in items if is_compaction(item)] if isinstance(items, list) else []
    content = read_content(found[-1]) if found else None
    session_id = None if content is None else content["session"]
    return session_id if isinstance(session_id, str) else None
