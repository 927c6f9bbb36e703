"""Puts what is known of a request into vLLM's answer to it: the receipt, its header, and fields beside it.

Whole answers are parsed once more. Streams are passed on, see `answer.py`. It knows no engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse, Response, StreamingResponse

from acmserve.server.exchange.answer import stream_with_field, stream_with_receipt
from acmserve.server.exchange.exchange import Exchange
from acmserve.server.exchange.receipt_header import receipt_line, session_headers, session_line


def deliver(response: Response | None, exchange: Exchange) -> Response | None:
    """Add the receipt to an answer of vLLM's, and to its headers what is known of it when they are sent.

    Errors pass as they are, and so does None: the client has gone.
    """
    if isinstance(response, StreamingResponse):
        line = session_line(exchange.session_id, exchange.fields)
        response.headers.update(session_headers(exchange.session_id, line))
        response.body_iterator = stream_with_receipt(response.body_iterator, exchange)
        return response
    if response is None or response.status_code != 200 or exchange.acm is None:
        return response
    response.headers.update(session_headers(exchange.session_id, receipt_line(exchange.acm)))
    return _joined(response, "acm", exchange.acm)


def deliver_told(response: Response | None, told: Mapping[str, Any]) -> Response | None:
    """Add `acm` to an answer that has no receipt. The headers say it where the session has a name."""
    if response is None or response.status_code != 200:
        return response
    if "session_id" in told:
        response.headers.update(session_headers(told["session_id"], receipt_line(told)))
    return _joined(response, "acm", dict(told))


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


def join_body(body: bytes, value: dict[str, Any], name: str = "acm") -> dict[str, Any]:
    """Return a JSON answer, parsed, with `name: value` at its top level."""
    payload: dict[str, Any] = json.loads(body)
    return payload | {name: value}
