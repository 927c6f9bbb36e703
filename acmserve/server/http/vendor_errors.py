"""Errors in the words of the API that a client speaks, so that it does what it does there: compact, or stop.

    vLLM      {"error": {"type": "BadRequestError", "message": "This model's maximum context length is ...",
                         "code": 400}}
    OpenAI    {"error": {"type": "invalid_request_error", "message": "This model's maximum context length is ...",
                         "param": "messages", "code": "context_length_exceeded"}}
    Anthropic {"type": "error", "error": {"type": "invalid_request_error",
                                          "message": "prompt is too long: 9120 tokens > 8192 maximum"}}

Decision: OpenAI's other errors stay as vLLM writes them, since clients of vLLM read them. Anthropic's clients read
`error.type`, so all its errors have the vendor's. What stands beside the message (`param`, `remedy`) stays.

Pure: bodies in, bodies out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from acmserve.server.vllm.overflow import Overflow

OVERFLOW_CODE = "context_length_exceeded"
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
_UNKNOWN_MODEL = re.compile(r"The model `(?P<name>.{1,128})` does not exist\. Valid aliases: (?P<served>[^,]*)(,.*)?\.")


def anthropic_error(status: int, body: Mapping[str, Any], overflow: Overflow | None = None) -> dict[str, Any]:
    """The body of an error of /v1/messages. A body that has the vendor's shape keeps its type."""
    error = _error_of(body)
    if overflow is not None:
        error["message"] = f"prompt is too long: {overflow.num_tokens} tokens > {overflow.max_tokens} maximum"
    if error.get("type") not in _ANTHROPIC_TYPES.values():
        error["type"] = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": error}


def openai_error(body: Mapping[str, Any], overflow: Overflow | None = None) -> dict[str, Any]:
    """The body of an error of OpenAI's routes: vLLM's own, but for an overflow."""
    if overflow is None:
        return {**body, "error": _error_of(body)} if "error" in body else dict(body)
    error = _error_of(body)
    error |= {"message": overflow.sentence, "type": "invalid_request_error", "code": OVERFLOW_CODE}
    return {**body, "error": error | {"param": error.get("param") or "messages"}}


def message_of(body: Mapping[str, Any]) -> str:
    """What an error says, "" where it says nothing."""
    return str(_error_of(body).get("message") or "")


def _error_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """The error itself. One of the framework's has `detail` instead. A 404 of vLLM's learns of aliases."""
    error = body.get("error")
    fields: dict[str, Any] = (
        dict(error) if isinstance(error, Mapping) else {"message": str(body.get("detail") or error)}
    )
    unknown = _UNKNOWN_MODEL.fullmatch(str(fields.get("message")))
    if unknown is not None:
        alias = f"--model-alias {shlex.quote('='.join(unknown.group('name', 'served')))}"
        fields["message"] = f"{fields['message']} Start the server with {alias} to have it served under this name."
    return fields
