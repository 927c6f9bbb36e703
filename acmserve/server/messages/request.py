"""vLLM's requests of /v1/messages, with what only the vendor's own models and servers know.

    compaction blocks              a summary takes the place of what stood before it
    blocks of server tools         a text that says the same
    `memory_20250818` and others   tools with a schema, see `vendor_parts.py`

vLLM refuses these types before a route is entered, so a body is transformed before its models read it. What is wrong
with a compaction block is said by the route (`check_compaction`), in the vendor's shape of errors.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from pydantic import model_validator

from acmserve.context.anthropic.compaction_blocks import has_compaction, resume
from acmserve.context.anthropic.vendor_parts import plain_blocks, plain_tools
from acmserve.server.vllm.handlers import AnthropicCountTokensRequest, AnthropicMessagesRequest

logger = logging.getLogger(f"vllm.{__name__}")


class MessagesRequest(AnthropicMessagesRequest):
    """vLLM's request for an answer. `messages` and `tools` may have the vendor's own parts."""

    @model_validator(mode="before")
    @classmethod
    def resume_compacted(cls, data: Any) -> Any:
        """The request as the model is to see it."""
        return _readable(data)


class CountTokensRequest(AnthropicCountTokensRequest):
    """vLLM's request for a count. `messages` and `tools` may have the vendor's own parts."""

    @model_validator(mode="before")
    @classmethod
    def resume_compacted(cls, data: Any) -> Any:
        """The request as the model is to see it."""
        return _readable(data)


def plain_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """A body without the blocks and the tools of the vendor's servers. Compaction blocks stay."""
    plain = dict(body)
    if "messages" in body:
        plain["messages"] = plain_blocks(body["messages"])
    tools, left_out = plain_tools(body.get("tools"))
    if left_out:
        logger.warning("acmserve: nobody carries out %s here, so the model is not offered it", ", ".join(left_out))
    if tools is not body.get("tools"):
        plain["tools"] = tools or None
    if left_out and not tools:
        plain["tool_choice"] = None
    return plain


def _readable(data: Any) -> Any:
    if not isinstance(data, Mapping):
        return data
    body = plain_body(data)
    return {**body, "messages": resume(body["messages"])} if has_compaction(body.get("messages")) else body
