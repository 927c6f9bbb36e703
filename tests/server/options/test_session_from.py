"""Where a session id stands in the requests of each client: a table."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.errors import InvalidRequest
from acmserve.plan.request import MAX_SESSION_ID_CHARS, check_session_id
from acmserve.server.identity.client_id import valid_id
from acmserve.server.identity.thread_hints import ThreadHints, read_hints
from acmserve.server.options.session_from import parse_sources
from acmserve.server.options.session_params import SOURCES, find_named, is_plain, parse_session_request
from tests.support.server.asked_session import params_of

CODEX = {"session-id": "0199-a", "thread-id": "0199-a", "x-client-request-id": "0199-a"}
CLAUDE = {"x-claude-code-session-id": "5f-1"}
OPENCODE = {"x-session-id": "ses_1", "x-session-affinity": "ses_1"}
USER_ID = json.dumps({"device_id": "d", "account_uuid": "", "session_id": "5f-2"})


@pytest.mark.parametrize(
    ("body", "headers", "session_id", "found_by", "is_explicit"),
    [
        ({"session_id": "ours"}, {}, "ours", "session_id", True),
        ({"session_id": "ours"}, CODEX | CLAUDE | OPENCODE, "ours", "session_id", True),
        ({}, {"x-session-id": "h"}, "h", "X-Session-ID", True),
        ({}, {"x-session-id": "h"} | CLAUDE, "h", "X-Session-ID", True),
        ({}, OPENCODE, "ses_1", "X-Session-ID", False),
        ({}, {"x-session-affinity": "ses_2"}, "ses_2", "x-session-affinity", False),
        ({}, OPENCODE | {"x-parent-session-id": "ses_0"}, "ses_1", "X-Session-ID", False),
        ({}, {"x-parent-session-id": "ses_0"}, "ses_0", "x-parent-session-id", False),
        ({"prompt_cache_key": "0199-a"}, CODEX, "0199-a", "thread-id", False),
        ({"prompt_cache_key": "key"}, {}, "key", "prompt_cache_key", False),
        ({}, {"session-id": "0199-b"}, "0199-b", "session-id", False),
        ({}, CLAUDE, "5f-1", "x-claude-code-session-id", False),
        ({"metadata": {"user_id": USER_ID}}, {}, "5f-2", "metadata.user_id", False),
        ({"metadata": {"user_id": USER_ID}}, CLAUDE, "5f-1", "x-claude-code-session-id", False),
        ({"conversation": "conv_1"}, {}, "conv_1", "conversation", False),
        ({"conversation": {"id": "conv_2"}}, {}, "conv_2", "conversation", False),
        ({"previous_response_id": "resp_1"}, {}, "known", "previous_response_id", False),
        ({"vllm_xargs": {"session_id": "x"}}, {}, "x", "vllm_xargs.session_id", True),
    ],
)
def test_the_id_of_each_client_is_found(
    body: dict[str, Any], headers: dict[str, str], session_id: str, found_by: str, is_explicit: bool
) -> None:
    lookup = {"resp_1": "known"}.get
    named = find_named(body, headers, lookup=lookup)
    assert named is not None
    assert (named.session_id, named.source.name, named.is_explicit) == (session_id, found_by, is_explicit)
    asked = parse_session_request(body, headers, lookup=lookup)
    assert asked is not None
    assert (asked.params.session_id, asked.found_by, asked.is_explicit) == (session_id, found_by, is_explicit)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"metadata": {"user_id": "somebody"}},
        {"metadata": {"user_id": "{not json"}},
        {"metadata": {"user_id": '{"session_id": null}'}},
        {"metadata": "text"},
        {"prompt_cache_key": ""},
        {"prompt_cache_key": ["a"]},
        {"prompt_cache_key": True},
        {"conversation": {}},
        {"conversation": 1.5},
        {"previous_response_id": "resp_unknown"},
        {"previous_response_id": 7},
    ],
)
def test_what_names_no_session_is_no_error(body: dict[str, Any]) -> None:
    assert find_named(body, {"thread-id": " ", "x-claude-code-session-id": ""}, lookup={}.get) is None


@pytest.mark.parametrize("odd", ["x" * 257, "tab\there", "a\x00b", "\ud800", "line\nbreak"])
def test_an_odd_id_of_a_client_is_a_digest_and_never_refused(odd: str) -> None:
    made = params_of({"prompt_cache_key": odd}, {})
    assert made is not None
    assert made.session_id == check_session_id(made.session_id, "session_id")
    assert made == params_of({}, {"x-claude-code-session-id": odd})
    with pytest.raises(InvalidRequest):
        params_of({"session_id": "x" * 257}, {})


@given(st.text() | st.integers() | st.none() | st.booleans() | st.lists(st.text()) | st.binary())
def test_every_value_is_an_id_or_none(value: object) -> None:
    made = valid_id(value)
    if made is not None:
        assert 0 < len(check_session_id(made, "session_id")) <= MAX_SESSION_ID_CHARS
        assert valid_id(made) == made


def test_several_answers_go_plainly_to_vllm() -> None:
    for headers in (CLAUDE, OPENCODE, CODEX):
        assert params_of({"n": 2}, headers) is None
        assert is_plain({"n": 2}, headers)
    assert is_plain({"n": 2, "prompt_cache_key": "k"}, {})
    with pytest.raises(InvalidRequest):
        params_of({"n": 2, "session_id": "ours"}, CLAUDE)


def test_acm_needs_no_id_of_ours() -> None:
    params = params_of({"acm": {"fidelity": "reuse"}}, CLAUDE)
    assert params is not None
    assert (params.session_id, params.fidelity) == ("5f-1", "reuse")


def test_a_clients_id_does_not_contradict_kv_transfer_params() -> None:
    asked = parse_session_request({"kv_transfer_params": {"acm": {"session_id": "direct"}}}, CLAUDE)
    assert asked is not None
    assert (asked.params.session_id, asked.found_by) == ("direct", "kv_transfer_params.acm.session_id")


def test_a_list_changes_order_and_membership() -> None:
    sources = parse_sources("x-claude-code-session-id, header:X-My-Run ,body:meta.run,session_id")
    assert [(source.where, source.path) for source in sources] == [
        ("header", "x-claude-code-session-id"),
        ("header", "x-my-run"),
        ("body", "meta.run"),
        ("body", "session_id"),
    ]
    body = {"session_id": "ours", "meta": {"run": 7}}
    assert find_named(body, CLAUDE | {"x-my-run": "r"}, sources).session_id == "5f-1"  # type: ignore[union-attr]
    assert find_named(body, {"x-my-run": "r"}, sources).session_id == "r"  # type: ignore[union-attr]
    assert find_named(body, {}, sources).session_id == "7"  # type: ignore[union-attr]
    assert find_named({"prompt_cache_key": "k"}, CODEX, sources) is None
    assert parse_sources("") == SOURCES


@pytest.mark.parametrize(
    "wrong", ["session", "header:", "header:a b", "body:", "body:a..b", "session_id,session_id", "a,", "query:x"]
)
def test_a_wrong_list_is_refused_with_the_names_there_are(wrong: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_sources(wrong)
    assert refused.value.field == "--session-from"
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ({}, ThreadHints()),
        ({"x-claude-code-agent-id": "a1"}, ThreadHints(agent="a1")),
        ({"x-codex-turn-metadata": '{"request_kind": "compaction"}'}, ThreadHints(kind="compaction")),
        ({"x-codex-turn-metadata": '{"request_kind": "turn"}'}, ThreadHints()),
        ({"x-codex-turn-metadata": '{"request_kind": "turn", "thread_id": "t1"}'}, ThreadHints(thread="t1")),
        ({"x-codex-turn-metadata": '{"request_kind": ["a"]}'}, ThreadHints()),
        ({"x-codex-turn-metadata": "[1"}, ThreadHints()),
        ({"x-codex-turn-metadata": "[" * 100_000}, ThreadHints()),
    ],
)
def test_what_a_client_tells(headers: dict[str, str], told: ThreadHints) -> None:
    assert read_hints(headers) == told
