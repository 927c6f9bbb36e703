"""Gives the event loop back between the steps of long work: counts of a conversation, batches of edits.

Other requests run in between. They may change any session that the caller does not hold, and record an answer in one
that it does.
"""

from __future__ import annotations

import asyncio
import time

from acmserve.context.edits.steps import Result, Steps

SLICE_SECONDS = 0.02


async def in_slices(steps: Steps[Result]) -> Result:
    """What the steps return."""
    began = time.monotonic()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result
        if time.monotonic() - began > SLICE_SECONDS:
            await asyncio.sleep(0)
            began = time.monotonic()
