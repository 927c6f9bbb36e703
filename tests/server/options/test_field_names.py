"""A misspelt field of ours beside those of vLLM, and the fields of other clients that pass."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from acmserve.errors import InvalidRequest
from acmserve.server.options.field_names import check_field_names
from acmserve.server.options.session_from import parse_sources
from acmserve.server.vllm.handlers import AnthropicMessagesRequest, ChatCompletionRequest
from acmserve.server.vllm.responses import ResponsesRequest

REQUESTS = (ChatCompletionRequest, AnthropicMessagesRequest, ResponsesRequest)
THEIRS = (
    *("store", "user", "metadata", "conversation", "thread_id", "prompt_cache_key", "safety_identifier", "options"),
    *("conversation_id", "version_id", "session_key", "service_tier", "web_search_options", "container", "mcp_servers"),
    *("extra_body", "provider", "transforms", "keep_alive", "context", "verbosity", "cache_control", "betas", "budget"),
)
"""Fields that clients of several vendors send, which vLLM passes over or reads."""


@pytest.mark.parametrize("request_type", REQUESTS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("session", "session_id"),
        ("sesion_id", "session_id"),
        ("sessionId", "session_id"),
        ("ACM", "acm"),
        ("acms", "acm"),
        ("context_managment", "context_management"),
        ("fidelity", "acm.fidelity"),
        ("fidelty", "acm.fidelity"),
    ],
)
def test_a_near_miss_is_refused_with_what_was_meant(request_type: type[BaseModel], name: str, meant: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_field_names({"messages": [], name: "x"}, request_type)
    assert refused.value.field == name
    assert refused.value.message == f"is no field of this request. Did you mean '{meant}'?"
    assert refused.value.remedy


@pytest.mark.parametrize("request_type", REQUESTS, ids=lambda kind: kind.__name__)
def test_fields_of_others_pass(request_type: type[BaseModel]) -> None:
    ours = {"session_id": "a", "acm": {}, "context_management": {}}
    check_field_names(ours | dict.fromkeys((*THEIRS, *request_type.model_fields)), request_type)
    check_field_names([], request_type)


def test_a_field_that_the_operator_named_passes() -> None:
    body = {"session": {"id": "a"}, "sesion_id": 1}
    with pytest.raises(InvalidRequest, match=r"^sesion_id: "):
        check_field_names(body, ChatCompletionRequest, parse_sources("body:session.id,session_id"))
    check_field_names(body, ChatCompletionRequest, parse_sources("body:session.id"))
