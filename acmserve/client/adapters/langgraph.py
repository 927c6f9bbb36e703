"""LangGraph: a middleware whose threads are sessions. A run from an earlier checkpoint becomes a branch.

    agent = create_agent(ChatOpenAI(...), tools, middleware=[AcmMiddleware(url, fidelity="reuse")], checkpointer=saver)
    agent.invoke({"messages": [...]}, {"configurable": {"thread_id": "agent-7"}})

Which session a line of checkpoints has stands in its last answer, so a restart and a resumed branch find it again. A
run whose config names a checkpoint begins a new line. Where that checkpoint is the end of its session, the server makes
a branch of it, with the session's edits. Where the session has gone on meanwhile, the line gets a session of its own.

Decision: the receipt is read from the header, for langchain-openai drops fields that it does not know. That of a
streamed answer names the session alone. A run behind `update_state` that names no checkpoint rewinds its session.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Unpack

from langchain.agents.middleware import AgentMiddleware, ModelRequest
from langgraph.config import get_config

from acmserve.client.answers import HeaderReceipt, header_receipt
from acmserve.client.errors import ConflictError, NotFoundError
from acmserve.client.options import AcmOptions, extra_body
from acmserve.client.place import routing_headers
from acmserve.client.session import SessionHandle

MARK = "acm"  # in an answer's `response_metadata`: `session_id`, `checkpoint_id` of the branch, `receipt`


class AcmMiddleware(AgentMiddleware[Any, Any, Any]):
    """Names the session of every model call. Without a `thread_id` nothing is added to it."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        context_management: Mapping[str, Any] | None = None,
        on_receipt: Callable[[HeaderReceipt], None] | None = None,
        **acm: Unpack[AcmOptions],
    ) -> None:
        super().__init__()
        self._base_url, self._api_key = base_url, api_key
        self._beside = {} if context_management is None else {"context_management": dict(context_management)}
        self._on_receipt, self._acm = on_receipt, acm

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[..., Any]) -> Any:
        """One call of the model."""
        asked, mark = self._prepared(request)
        return self._noted(handler(asked), mark)

    async def awrap_model_call(self, request: ModelRequest[Any], handler: Callable[..., Awaitable[Any]]) -> Any:
        """One asynchronous call of the model."""
        asked, mark = await asyncio.to_thread(self._prepared, request)
        return self._noted(await handler(asked), mark)

    def _prepared(self, request: ModelRequest[Any]) -> tuple[ModelRequest[Any], dict[str, Any]]:
        """The request of its session, and what its answer is marked with."""
        config = get_config()
        thread, checkpoint = config["configurable"].get("thread_id"), config.get("metadata", {}).get("checkpoint_id")
        if thread is None:
            return request, {}
        marks = (getattr(message, "response_metadata", {}).get(MARK) for message in reversed(request.messages))
        mark = dict(next((mark for mark in marks if mark), {"session_id": str(thread), "checkpoint_id": None}))
        if checkpoint is not None and mark["checkpoint_id"] != checkpoint:
            num_messages = len(request.messages) + (request.system_message is not None)
            name = self._branch(mark["session_id"], str(thread), checkpoint, num_messages)
            mark = {"session_id": name, "checkpoint_id": checkpoint}
        model, settings = request.model, dict(request.model_settings)
        given = settings.get("extra_body") or getattr(model, "extra_body", None) or {}
        settings["extra_body"] = {**given, **extra_body(mark["session_id"], None, self._acm), **self._beside}
        settings["extra_headers"] = {**(settings.get("extra_headers") or {}), **routing_headers(str(thread))}
        if "include_response_headers" in type(model).model_fields:
            model = model.model_copy(update={"include_response_headers": True})
        return request.override(model=model, model_settings=settings), mark

    def _branch(self, parent: str, thread: str, checkpoint: str, num_messages: int) -> str:
        """A session that begins as the parent is, if this line has all of its messages. Else a new name."""
        handle = SessionHandle(self._base_url, parent, api_key=self._api_key, route=thread)
        with handle as session, suppress(NotFoundError, ConflictError):
            branch = session.branch(f"checkpoint {checkpoint}", "Go on from this checkpoint.")
            if (branch.made.num_messages or 0) <= num_messages:
                return branch.session_id
            branch.abandon()
        return f"{parent}@{uuid.uuid4().hex[:12]}"

    def _noted(self, response: Any, mark: dict[str, Any]) -> Any:
        """The response with its mark. Its headers are taken out again."""
        for message in response.result if mark else ():
            receipt = header_receipt(message.response_metadata.pop("headers", None) or {})
            message.response_metadata[MARK] = {**mark, "receipt": None if receipt is None else asdict(receipt)}
            if receipt is not None and self._on_receipt is not None:
                self._on_receipt(receipt)
        return response
