"""What the store says of a session that is not there, is too large, or is not what was counted. Texts, no decisions."""

from __future__ import annotations

from collections.abc import Mapping

from acmserve.context.storage.codecs.rows import sizes_of
from acmserve.context.storage.session import Key, Session, SessionLimits
from acmserve.errors import Conflict, IntegrityError, NotFound


def not_found(session_id: str, limits: SessionLimits, *, has_file: bool) -> NotFound:
    """A session that is not there, with the bounds that may have taken it."""
    seconds = limits.ttl_seconds
    unused = f"{seconds / 86400:g} days" if seconds >= 86400 else f"{seconds:g} seconds"
    bound, count_flag, size_flag = limits.memory, "--max-sessions", "--max-session-mib"
    if has_file:
        bound, count_flag, size_flag = limits.file, "--max-stored-sessions", "--max-stored-mib"
    return NotFound(
        "session_id",
        f"there is no session {session_id!a}.",
        f"Create it, or send its messages again with this id. Sessions unused for {unused} (--session-hours) are "
        f"dropped, and so are the least recently used of more than {bound.max_sessions:,} ({count_flag}) or "
        f"{bound.max_bytes:,} bytes ({size_flag}).",
    )


def taken(session_id: str) -> Conflict:
    """An id for a new session that another one has."""
    return Conflict("session_id", f"{session_id!a} exists already.", "Use it, delete it first, or choose another id.")


def too_large(session: Session, num_bytes: int, room: int) -> Conflict:
    """A session that alone would exceed what the bounds leave to it."""
    return Conflict(
        "session_id",
        f"{session.session_id!a} would hold {num_bytes:,} bytes; the bounds leave {room:,} to it. Nothing was changed.",
        "Go on in a new session, or start the server with a larger limit (--max-session-mib).",
    )


def check_sessions(sessions: Mapping[Key, Session]) -> None:
    """Raise `IntegrityError` where a session is broken, filed under another name, or has other sizes than counted."""
    for key, session in sessions.items():
        named = (session.tenant, session.session_id)
        if key != session.key or key != named:
            raise IntegrityError(f"store: session {named} is filed as {key}")
        session.state.check_integrity()
        sizes = sizes_of(session.state)
        if sizes != session.sizes:
            raise IntegrityError(
                f"store: {session.session_id!a} has {len(sizes.entries)} entries, {len(sizes.fragments)} fragments and "
                f"{len(sizes.rollout)} rows of its rollout of {sizes.num_bytes} bytes, {session.num_bytes} were counted"
            )
