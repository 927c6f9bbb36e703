"""Requests that wait for a session which somebody holds."""

from __future__ import annotations

import asyncio
from typing import Any

from acmserve.server.context.server import ContextServer


async def until_they_wait(server: ContextServer, num: int, *session_ids: str) -> None:
    """Until so many wait for sessions that are held, by default for `s`, however long the machine takes for it."""
    locks: Any = server.sessions._locks
    keys = [("", session_id) for session_id in session_ids or ("s",)]
    while sum(len(locks[key]._waiters or ()) for key in keys if key in locks) < num:
        await asyncio.sleep(0.001)
