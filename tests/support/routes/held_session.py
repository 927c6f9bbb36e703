"""Requests that wait for a session which somebody holds."""

from __future__ import annotations

import asyncio
from typing import Any

from acmserve.server.context.server import ContextServer


async def until_they_wait(server: ContextServer, num: int, session_id: str = "s") -> None:
    """Until so many wait for the session that is held, however long the machine takes for it."""
    lock: Any = server.sessions._locks["", session_id]
    while len(lock._waiters or ()) < num:
        await asyncio.sleep(0.001)
