"""A client's own id as the id of a session: itself, or a digest of one that no path can say.

Pure. It knows no request, and no place where an id may stand.
"""

from __future__ import annotations

import hashlib

from acmserve.errors import InvalidRequest
from acmserve.plan.request import MAX_SESSION_ID_CHARS, check_session_id


def valid_id(value: object) -> str | None:
    """A client's own id as a session id: itself, or a digest of one that is too long or odd. None for no id."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        return None
    text = value.strip()
    if len(text) <= MAX_SESSION_ID_CHARS and text.isprintable():
        return text
    return f"id-{digest_id(text)}"


def taken_id(value: str) -> str | None:
    """An id that vLLM takes: itself, or a digest of one that a session cannot have. None for the empty one."""
    try:
        return check_session_id(value, "session_id")
    except InvalidRequest:
        return valid_id(value)


def digest_id(text: str) -> str:
    """A short digest of an id, the same after a restart."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
