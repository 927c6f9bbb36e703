"""Gives the event loop back between the steps of long work: counts of a conversation, batches of edits.

Other requests run in between. They may change any session that the caller does not hold, and record an answer in one
that it does.
"""

from __future__ import annotations

import asyncio
import time

from acmserve.context.edits.steps import Result, StepRun, Steps

SLICE_SECONDS = 0.02


async def in_slices(steps: Steps[Result]) -> Result:
    """What the steps return."""
    run, began = StepRun(steps), time.monotonic()
    for _ in run:
        if time.monotonic() - began > SLICE_SECONDS:
            await asyncio.sleep(0)
            began = time.monotonic()
    return run.result
