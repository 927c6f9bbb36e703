"""LiteLLM with the callback: an answer, and an asynchronous one. Prints how many receipts there are of each."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import litellm

from acmserve.client import SessionHandle
from acmserve.client.adapters.litellm import AcmCallback

URL = sys.argv[1]
RECEIPTS = AcmCallback()
MAX_SECONDS = 60
litellm.callbacks = [RECEIPTS]
ASKED: dict[str, Any] = {
    "model": "openai/errands",
    "api_base": f"{URL}/v1",
    "api_key": "unused",
    "messages": [{"role": "user", "content": "Hello."}],
    "max_tokens": 4,
}


def show(name: str) -> None:
    """Callbacks come from another thread."""
    end = time.monotonic() + MAX_SECONDS
    while not RECEIPTS.of(name) and time.monotonic() < end:
        time.sleep(0.05)
    found = RECEIPTS.of(name)
    print(len(found), all(receipt.prompt_tokens for receipt in found))


async def ask(name: str, body: dict[str, Any]) -> None:
    """The callback of an asynchronous answer is a task of the same loop, which ends too early without a wait."""
    await litellm.acompletion(**ASKED, extra_body=body)
    async with asyncio.timeout(MAX_SECONDS):
        while not RECEIPTS.of(name):
            await asyncio.sleep(0.05)


with SessionHandle(URL, "litellm-1") as one, SessionHandle(URL, "litellm-2") as other:
    litellm.completion(**ASKED, extra_body=one.extra_body(fidelity="reuse"))
    show("litellm-1")
    asyncio.run(ask("litellm-2", other.extra_body(fidelity="reuse")))
    show("litellm-2")
