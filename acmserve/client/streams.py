"""Reads the receipt of a stream beside the program that reads its text.

    stream = ReceiptStream(client.chat.completions.create(..., stream=True))
    for chunk in stream: ...
    stream.acm.receipt

Every event passes as it is. `acm` is None until the server has sent it, which it does with the end of the answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Generic, TypeVar

from acmserve.client.answers import StepCall, StepReceipt, acm_of, step_of
from acmserve.client.receipts import AcmAnswer, PromptReceipt

Event = TypeVar("Event")
Watch = Callable[[StepReceipt | StepCall], None]


class ReceiptReader:
    """Looks into events, one by one. `on_step` hears of each step of a tool loop when it has ended."""

    def __init__(self, on_step: Watch | None = None) -> None:
        self.acm: AcmAnswer | None = None
        self._on_step = on_step

    @property
    def receipt(self) -> PromptReceipt | None:
        """The receipt of the last prompt. None as long as none has come."""
        return None if self.acm is None else self.acm.receipt

    def read(self, event: object) -> None:
        """Look into one event."""
        step = step_of(event)
        if step is None:
            self.acm = acm_of(event) or self.acm
        elif self._on_step is not None:
            self._on_step(step)


class ReceiptStream(ReceiptReader, Generic[Event]):
    """Events of a stream, handed through."""

    def __init__(self, events: Iterable[Event], on_step: Watch | None = None) -> None:
        super().__init__(on_step)
        self._events = events

    def __iter__(self) -> Iterator[Event]:
        for event in self._events:
            self.read(event)
            yield event


class AsyncReceiptStream(ReceiptReader, Generic[Event]):
    """Events of an asynchronous stream, handed through."""

    def __init__(self, events: AsyncIterable[Event], on_step: Watch | None = None) -> None:
        super().__init__(on_step)
        self._events = events

    async def __aiter__(self) -> AsyncIterator[Event]:
        async for event in self._events:
            self.read(event)
            yield event
