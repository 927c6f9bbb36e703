"""Whatever stands in our fields, on any route of vLLM that answers: an answer or a refusal that says why, never a 500.

The routes of ours are held against their document in `tests/server/routes/test_openapi.py`. In the suite some hundred
requests, forty to a route, where `make fuzz` sends 5,000.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import http
from tests.support.fuzzing import FACTOR
from tests.support.server.scripted_server import MODEL

NUM_BODIES = 40 if FACTOR == 1 else 100 * FACTOR
MESSAGES = [{"role": "user", "content": "Hello there."}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/chat/completions/batch": {"messages": [MESSAGES, MESSAGES], "max_tokens": 2},
    "/v1/completions": {"prompt": "Hello there.", "max_tokens": 2},
    "/v1/responses": {"input": "Hello there.", "max_output_tokens": 2},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/inference/v1/generate": {"token_ids": [5, 6, 7, 8], "sampling_params": {"max_tokens": 2}},
}

words = st.sampled_from(
    ["", "s", "exact", "reuse", "auto", "clear_tool_uses_20250919", "cwl", "x" * 300, "\ud800", "\0"]
)
scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | words | st.text(max_size=20)
names = st.sampled_from(
    [
        *("session_id", "fidelity", "repair", "ranges", "tools", "budget", "map", "map_id", "placement", "precompute"),
        *("edits", "type", "trigger", "keep", "value", "max_tokens", "low_watermark", "policy", "branch", "loop"),
    ]
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names | words, inner, max_size=4),
    max_leaves=12,
)
fields = st.fixed_dictionaries(
    {},
    optional={
        "session_id": st.just("fuzzed") | values,
        "acm": st.dictionaries(names, values, max_size=4) | values,
        "context_management": st.fixed_dictionaries({"edits": values}) | values,
        "cache_salt": st.just("salt"),
        "kv_transfer_params": st.fixed_dictionaries({"acm": st.dictionaries(names, values, max_size=4) | values}),
        # A lone surrogate here is a 500 of vLLM's own on its batch route, under every name.
        "vllm_xargs": st.fixed_dictionaries({"session_id": st.sampled_from(["", "s", "x" * 300])}),
        "stream": st.booleans(),
    },
)


def sent(server: str, path: str, body: dict[str, Any]) -> Any:
    """The body as bytes: JSON as Python writes it may have lone surrogates and numbers that JSON does not know."""
    return http.post(server + path, content=json.dumps(body).encode(), headers={"Content-Type": "application/json"})


@pytest.mark.parametrize("path", ROUTES)
def test_our_fields_never_break_a_route(scripted_server: str, path: str) -> None:
    @settings(
        max_examples=NUM_BODIES,
        derandomize=FACTOR == 1,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(fields)
    def check(added: dict[str, Any]) -> None:
        answer = sent(scripted_server, path, {"model": MODEL, **ROUTES[path], **added})
        assert answer.status_code < 500, (added, answer.text)
        if answer.status_code >= 400:
            assert answer.json()["error"]["message"], added

    check()
    assert sent(scripted_server, path, {"model": MODEL, **ROUTES[path]}).status_code == 200
