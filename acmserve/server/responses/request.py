"""vLLM's request of /v1/responses, with compaction items allowed: a summary takes the place of what stood before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import model_validator

from acmserve.errors import InvalidRequest
from acmserve.server.responses.compaction_item import expand, has_compaction_item
from acmserve.server.vllm.handlers import VLLMValidationError
from acmserve.server.vllm.responses import ResponsesRequest


class CompactedRequest(ResponsesRequest):
    """vLLM's request. `input` may have compaction items."""

    @model_validator(mode="before")
    @classmethod
    def expand_compactions(cls, data: Any) -> Any:
        """The request as the model is to see it."""
        if not isinstance(data, Mapping) or not has_compaction_item(data.get("input")):
            return data
        try:
            return {**data, "input": expand(data["input"])}
        except InvalidRequest as error:
            raise VLLMValidationError(f"{error.message} {error.remedy}", parameter=error.field) from error
