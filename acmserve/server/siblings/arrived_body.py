"""The body of a request that may have to be handed over: read whole, within the bound that one server alone has.

    arrived   [ chunk )[ chunk )[ chunk ) ...     at most `MAX_BODY_BYTES` are kept
    receive   [ chunk )[ chunk )[ chunk )[ what has not arrived yet ...

A longer body is read no further, and is refused here on every route. Its session is not known, so neither is its owner.

It knows bytes, and nothing of JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from starlette.types import Message, Receive, Scope

from acmserve.server.http.strict_json import BodyTooLarge, StrictRequest, check_size


@dataclass(slots=True)
class ArrivedBody:
    """`whole` is None where the client left before it was complete, and where `refusal` says that it is too long."""

    whole: bytes | None = None
    refusal: BodyTooLarge | None = None
    messages: list[Message] = field(default_factory=list)

    def again(self, receive: Receive) -> Receive:
        """A `receive` that gives what has arrived once more, and then what has not."""
        waiting: Iterator[Message] = iter(self.messages)

        async def replayed() -> Message:
            return next(waiting, None) or await receive()

        return replayed


async def read_body(scope: Scope, receive: Receive) -> ArrivedBody:
    """Read a body to its end, or until it is too long."""
    arrived, num_bytes = ArrivedBody(), 0
    try:
        check_size(StrictRequest(scope).declared_bytes)
        while True:
            message = await receive()
            arrived.messages.append(message)
            if message["type"] != "http.request":
                return arrived
            num_bytes += len(message.get("body", b""))
            check_size(num_bytes)
            if not message.get("more_body", False):
                break
    except BodyTooLarge as refusal:
        arrived.refusal = refusal
        return arrived
    arrived.whole = b"".join(each.get("body", b"") for each in arrived.messages)
    return arrived
