"""The route class of vLLM's answering routes: what fails there, and how its vendor's clients hear of it.

    body --vLLM's models--> function --> answer                      passes as it is
               |               |-- JSON with an error status --.
               '---------------'-- exception --the app's handler-----> the same status, the vendor's body

Every failure before the first byte passes here, that of a stream too: status and body are those of the error. It knows
the app's exception handlers by their types, and asks them first, so what they log and do is done.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi.exceptions import HTTPException, RequestValidationError
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from acmserve.server.http.vendor_errors import anthropic_error, message_of, openai_error
from acmserve.server.vllm.handlers import VLLMError
from acmserve.server.vllm.overflow import NO_ROOM, Overflow, asks_for_none, find_overflow

ANTHROPIC_PREFIX = "/v1/messages"
_ERRORS = (RequestValidationError, HTTPException, VLLMError, ValueError)


class VendorRoute(APIRoute):
    """Use as `route_class_override` of a route of vLLM's."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:
        """FastAPI's handler, its errors in the vendor's words."""
        handle: Callable[[Request], Awaitable[Response]] = super().get_route_handler()
        is_anthropic = self.path.startswith(ANTHROPIC_PREFIX)

        async def handle_and_tell(request: Request) -> Response:
            try:
                response = await handle(request)
            except _ERRORS as error:
                refused = await _answer_of_app(request, error)
                if refused is None:
                    raise
                response = refused
            return await respoken(request, response, is_anthropic=is_anthropic)

        return handle_and_tell


async def _answer_of_app(request: Request, error: Exception) -> Response | None:
    """What the app's own handler makes of an error. None where it has none."""
    handlers = request.app.exception_handlers
    handler = next((handlers[kind] for kind in type(error).__mro__ if kind in handlers), None)
    response: Response | None = None if handler is None else await handler(request, error)
    return response


async def respoken(request: Request, response: Response, *, is_anthropic: bool) -> Response:
    """The response, if it is an error with the vendor's body. Headers and what runs behind it stay."""
    if not isinstance(response, JSONResponse) or response.status_code < 400:
        return response
    body: dict[str, Any] = json.loads(bytes(response.body))
    overflow = await _overflow(request, message_of(body)) if response.status_code == 400 else None
    error_body = anthropic_error(response.status_code, body, overflow) if is_anthropic else openai_error(body, overflow)
    headers = {k: v for k, v in response.headers.items() if k not in ("content-length", "content-type")}
    return JSONResponse(error_body, response.status_code, headers=headers, background=response.background)


async def _overflow(request: Request, message: str) -> Overflow | None:
    if message.startswith(NO_ROOM) and asks_for_none(await request.json()):
        return None
    client = getattr(request.app.state, "engine_client", None)
    return find_overflow(message, 0 if client is None else client.model_config.max_model_len)
