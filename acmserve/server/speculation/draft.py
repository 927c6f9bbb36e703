"""A draft: one engine request whose tokens are gathered beside everything else, until somebody stops it.

It becomes no source, and its KV stands in the prefix cache under keys of its lineage, where no other request looks.
What it says is no answer. It does not know how a draft is verified.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

logger = logging.getLogger(f"vllm.{__name__}")


class Draft:
    """Reads `outputs` in a task of its own from `start` on. `tokens` are those so far, `receipt` the engine's."""

    def __init__(self, outputs: AsyncGenerator[Any, None]) -> None:
        self.tokens: list[int] = []
        self.receipt: dict[str, Any] = {}
        self._outputs = outputs
        self._began = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_logged = False

    @property
    def num_moved(self) -> int:
        """Tokens of its prompt whose KV was moved."""
        return int(self.receipt.get("moved_tokens", 0))

    @property
    def failed(self) -> bool:
        """Whether the engine raised an error for it. `stop` logs which."""
        return self._task is not None and self._task.done() and not self._task.cancelled() and self._error() is not None

    async def start(self) -> None:
        """Returns when it has its first token, or has ended."""
        self._task = asyncio.create_task(self._read())
        await self._began.wait()

    async def stop(self) -> None:
        """End the request in the engine. Stopping twice is fine."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        if self.failed and not self._is_logged:
            self._is_logged = True
            logger.warning("acmserve: a draft ended early: %s", self._error())

    def _error(self) -> BaseException | None:
        return None if self._task is None else self._task.exception()

    async def _read(self) -> None:
        try:
            async with aclosing(self._outputs):
                async for output in self._outputs:
                    acm = (output.kv_transfer_params or {}).get("acm") or {}
                    self.receipt = acm.get("receipt") or self.receipt
                    for completion in output.outputs:
                        self.tokens.extend(completion.token_ids)
                    if self.tokens:
                        self._began.set()
        finally:
            self._began.set()
