"""What vLLM's answering routes take and give beside vLLM's own, in the server's OpenAPI document.

    answers    vLLM's model + acm (+ context_management)      a model of ours in `responses` of the route
    requests   vLLM's schema + session_id, acm, ...           properties added to the document

Decision: requests are documented, not declared. vLLM's models of requests are read by vLLM, which would send a declared
field on to its handlers. `context_management` of /v1/responses is OpenAI's, and has a schema of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel, Field

from acmserve.server.app.paths import COMPACT_PATH, COUNT_PATH, RESPONSES_PATH
from acmserve.server.exchange.receipt_header import RECEIPT_HEADER
from acmserve.server.routes.schemas.context_management import CompactionFields, ContextManagementView
from acmserve.server.routes.schemas.receipts import FoundFields, ReceiptFields, SessionFields
from acmserve.server.vllm.handlers import (
    AnthropicContentBlock,
    AnthropicCountTokensResponse,
    AnthropicMessagesResponse,
    ChatCompletionResponse,
    CompletionResponse,
    ResponsesResponse,
)

_ACM = Field(default=None, description="The session and the receipt. A request without a session has none.")
_EDITED = Field(default=None, description="What the edits of the request have cleared: `applied_edits`.")
_FOUND = Field(default=None, description="The session that it was found in. Missing where it was in none.")
_REFERENCE = "#/components/schemas/{model}"
_HEADERS = {
    RECEIPT_HEADER: {
        "description": "The receipt in one line: `session`, `found_by`, `steps`, `fidelity`, `chosen`, `prompt`, "
        "`kept`, `moved`, `computed` and `fallback`. That of a stream has the first two.",
        "schema": {"type": "string"},
    },
    "X-Session-ID": {"description": "The session's id as it is, for proxies.", "schema": {"type": "string"}},
}


class CompactionContent(BaseModel):
    """The summary that takes the place of all that stood before it. Null where none could be had."""

    type: Literal["compaction"] = Field(description="The kind of the block.")
    content: str | None = Field(default=None, description="The summary.")


class ChatAnswer(ChatCompletionResponse):
    """An answer of /v1/chat/completions."""

    acm: ReceiptFields | None = _ACM
    context_management: ContextManagementView | None = _EDITED


class CompletionAnswer(CompletionResponse):
    """An answer of /v1/completions."""

    acm: ReceiptFields | None = _ACM


class ResponsesAnswer(ResponsesResponse):
    """An answer of /v1/responses. In a stream it is the `response` of the closing event."""

    acm: ReceiptFields | None = _ACM
    context_management: ContextManagementView | None = _EDITED


class MessagesAnswer(AnthropicMessagesResponse):
    """An answer of /v1/messages."""

    content: list[AnthropicContentBlock | CompactionContent] = Field(description="The blocks of the answer.")
    acm: ReceiptFields | None = _ACM
    context_management: ContextManagementView | None = _EDITED


class CountAnswer(AnthropicCountTokensResponse):
    """An answer of /v1/messages/count_tokens."""

    acm: FoundFields | None = _FOUND


class CompactAnswer(BaseModel):
    """An answer of /v1/responses/compact, with OpenAI's fields."""

    id: str = Field(description="Its id. It names no answer that a conversation could go on from.")
    object: Literal["response.compaction"] = Field(description="What it is.")
    created_at: int = Field(description="Seconds since the epoch.")
    output: list[dict[str, Any]] = Field(description="The user's messages, and one compaction item.")
    usage: dict[str, Any] = Field(description="Tokens of the summary, as a response has them.")
    acm: FoundFields | None = _FOUND


ANSWERS: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatAnswer,
    "/v1/completions": CompletionAnswer,
    "/v1/responses": ResponsesAnswer,
    "/v1/messages": MessagesAnswer,
}
TOLD: dict[str, type[BaseModel]] = {COUNT_PATH: CountAnswer, COMPACT_PATH: CompactAnswer}
"""Answers that have no receipt, and tell how their session was found."""

REQUESTS: Mapping[str, tuple[str, ...]] = {
    "/v1/chat/completions": ("session_id", "acm", "context_management"),
    "/v1/completions": ("session_id", "acm"),
    "/v1/responses": ("session_id", "acm", "context_management"),
    "/v1/messages": ("session_id", "acm", "context_management"),
    "/v1/messages/count_tokens": ("session_id", "acm", "context_management"),
}


def documented(path: str, responses: Mapping[int | str, dict[str, Any]]) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route of vLLM's, with what ours answers."""
    model = (ANSWERS | TOLD).get(path)
    if model is None:
        return dict(responses)
    return {**responses, 200: {**responses.get(200, {}), "model": model, "headers": _HEADERS}}


def document_requests(app: FastAPI) -> None:
    """Have the app's document say what its requests may have of ours. It is made when it is first asked for."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        is_new = app.openapi_schema is None
        document = make()
        if is_new:
            add_fields(document)
        return document

    vars(app)["openapi"] = openapi


def add_fields(document: dict[str, Any]) -> None:
    """Add our fields to the schemas of the requests in an OpenAPI document."""
    ours = SessionFields.model_json_schema(ref_template=_REFERENCE)
    of_responses = CompactionFields.model_json_schema(ref_template=_REFERENCE)
    schemas: dict[str, Any] = document.get("components", {}).get("schemas", {})
    for path, names in REQUESTS.items():
        operation = document["paths"].get(path, {}).get("post")
        if operation is None:
            continue
        reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        properties = schemas[reference.rpartition("/")[2]].setdefault("properties", {})
        shown = ours["properties"] | (of_responses["properties"] if path == RESPONSES_PATH else {})
        for name in names:
            properties.setdefault(name, shown[name])
    for name, schema in (ours["$defs"] | of_responses["$defs"]).items():
        schemas.setdefault(name, schema)
