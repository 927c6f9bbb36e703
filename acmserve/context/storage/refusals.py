"""What the store says of a session that is not there, is too large, or is not what was counted. It changes nothing."""

from __future__ import annotations

from collections.abc import Mapping

from acmserve.context.storage.codecs.rows import sizes_of
from acmserve.context.storage.fair_share import room
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


def check_room(session: Session, num_bytes: int, sessions: Mapping[Key, Session], limits: SessionLimits) -> None:
    """Raise `Conflict` where a session of `num_bytes` is larger than what the shares of others leave to it.

    `sessions` are those in memory, and too large together.
    """
    most = room(session.key, {key: other.num_bytes for key, other in sessions.items()}, limits.memory)
    if num_bytes > most:
        raise Conflict(
            "session_id",
            f"{session.session_id!a} would hold {num_bytes:,} bytes; the bounds leave {most:,} to it. Nothing was "
            "changed.",
            "Go on in a new session, or start the server with a larger limit (--max-session-mib).",
        )


def over_bounds(num_sessions: int, num_bytes: int, limits: SessionLimits) -> IntegrityError:
    """A store that holds more than its bounds."""
    sessions = f"{num_sessions} sessions of {limits.max_sessions}"
    return IntegrityError(f"store: {sessions}, {num_bytes} bytes of {limits.max_bytes}")


def check_sessions(sessions: Mapping[Key, Session], num_bytes: int) -> None:
    """Raise `IntegrityError` where a session is broken, filed under another name, or has other sizes than counted."""
    total = sum(session.num_bytes for session in sessions.values())
    if total != num_bytes:
        raise IntegrityError(f"store: {num_bytes} bytes counted, the sessions have {total}")
    for key, session in sessions.items():
        named = (session.tenant, session.session_id)
        if key != session.key or key != named:
            raise IntegrityError(f"store: session {named} is filed as {key}")
        session.state.check_integrity()
        session.turns.check_integrity()
        sizes = sizes_of(session.state, session.turns)
        if sizes != session.sizes:
            raise IntegrityError(
                f"store: {session.session_id!a} has {len(sizes.entries)} entries, {len(sizes.fragments)} fragments and "
                f"{len(sizes.rollout)} rows of its rollout of {sizes.num_bytes} bytes, {session.num_bytes} were counted"
            )
