"""A misspelt field of ours beside those of vLLM, and the fields of other clients that pass."""

from __future__ import annotations

import difflib
from collections import UserDict
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from acmserve.errors import InvalidRequest
from acmserve.server.options.field_names import MAX_COMPARED, check_field_names
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


class Counted(UserDict[str, Any]):
    """A body that counts the names that are read of it."""

    num_read = 0

    def __iter__(self) -> Iterator[str]:
        for name in super().__iter__():
            self.num_read += 1
            yield name


def test_many_unknown_fields_cost_no_more_than_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body may hold millions of names, and each comparison of one held the server up for 30 microseconds."""
    num_compared = 0
    compare = difflib.get_close_matches

    def counting(*args: Any, **kwargs: Any) -> list[str]:
        nonlocal num_compared
        num_compared += 1
        return compare(*args, **kwargs)

    monkeypatch.setattr(difflib, "get_close_matches", counting)
    body = Counted({"messages": []} | {f"field_{number}": 0 for number in range(20_000)})
    check_field_names(body, ChatCompletionRequest)
    assert 0 < num_compared <= 2 * MAX_COMPARED
    assert body.num_read <= len(ChatCompletionRequest.model_fields) + MAX_COMPARED


def test_a_near_miss_among_many_fields_is_refused() -> None:
    theirs = dict.fromkeys((*THEIRS, *(f"field_{number}" for number in range(MAX_COMPARED - len(THEIRS) - 1))))
    with pytest.raises(InvalidRequest, match="'session_id'"):
        check_field_names(theirs | {"sesion_id": "x"}, ChatCompletionRequest)
