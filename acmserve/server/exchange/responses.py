"""Adds to a finished answer of vLLM's what we have to say about it: to its JSON, or to a stream as it passes.

Errors pass as they are, and so does None, which vLLM returns when the client has gone.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse, Response, StreamingResponse

from acmserve.server.exchange.answer import join_body, stream_with_field, stream_with_receipt
from acmserve.server.exchange.exchange import Exchange


def deliver(response: Response | None, exchange: Exchange) -> Response | None:
    """Add the receipt of a session request."""
    if isinstance(response, StreamingResponse):
        response.body_iterator = stream_with_receipt(response.body_iterator, exchange)
        return response
    return response if exchange.acm is None else _joined(response, "acm", exchange.acm)


def deliver_field(response: Response | None, name: str, value: dict[str, Any]) -> Response | None:
    """Add a field that is known before the answer begins."""
    if isinstance(response, StreamingResponse):
        response.body_iterator = stream_with_field(response.body_iterator, name, value)
        return response
    return _joined(response, name, value)


def _joined(response: Response | None, name: str, value: dict[str, Any]) -> Response | None:
    if not isinstance(response, JSONResponse) or response.status_code != 200:
        return response
    kept = {k: v for k, v in response.headers.items() if k not in ("content-length", "content-type")}
    return JSONResponse(join_body(bytes(response.body), value, name), headers=kept, background=response.background)
