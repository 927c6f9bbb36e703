"""The isolation matrix: two keys and two salts at every route of the server, vLLM's own included.

What one tenant sent is to another as if it had never been sent. No token of it is moved or kept, and none is found in
the prefix cache, so that a clock sees nothing either. What it made answers 404. A route that the tables below do not
name fails here, so that none is added unseen.

`make fleet` runs this with two API servers. Each session has one of them as its owner, and context maps are refused.
"""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import http
from tests.support.server.running_server import FLEET
from tests.support.tenants.doors import MODEL, Door, Found, Guest
from tests.support.tenants.keyed_server import KeyedServer

READ = "The harbour log tells of ships that came and went in the morning, and of what they carried. " * 12
KEPT = "The tower keeper wrote down the wind, the height of the water and every lamp that was lit. " * 24
NOTHING = Found(0, 0, 0)

SPELLINGS = {
    "/v1/chat/completions": ("header", "field", "params"),
    "/v1/chat/completions/batch": ("header", "params"),
    "/v1/completions": ("header", "field", "params"),
    "/v1/responses": ("header", "field", "params"),
    "/v1/messages": ("header", "field", "params"),
    "/inference/v1/generate": ("header", "params"),
    "/invocations": ("header", "params"),
    "/generative_scoring": (),
}
"""The routes that generate, and how each is told a session. The last one knows none."""

OWNED = {
    ("GET", "/v1/acm/sessions/{session_id}"): None,
    ("DELETE", "/v1/acm/sessions/{session_id}"): None,
    ("GET", "/v1/acm/sessions/{session_id}/branches"): None,
    ("POST", "/v1/acm/sessions/{session_id}/branches"): {"description": "look", "prompt": "Look around."},
    ("DELETE", "/v1/acm/sessions/{session_id}/branches/{branch_id}"): None,
    ("POST", "/v1/acm/sessions/{session_id}/branches/{branch_id}/return"): {"message": "Seen."},
    ("GET", "/v1/acm/sessions/{session_id}/budget"): None,
    ("PUT", "/v1/acm/sessions/{session_id}/budget"): {"max_tokens": 2000},
    ("DELETE", "/v1/acm/sessions/{session_id}/budget"): None,
    ("GET", "/v1/acm/sessions/{session_id}/context"): None,
    ("POST", "/v1/acm/sessions/{session_id}/edits"): {"edits": [{"op": "fold", "messages": {"start": 0, "end": 1}}]},
    ("GET", "/v1/acm/sessions/{session_id}/episodes"): None,
    ("GET", "/v1/acm/sessions/{session_id}/events"): None,
    ("GET", "/v1/acm/sessions/{session_id}/messages"): None,
    ("GET", "/v1/acm/sessions/{session_id}/messages/{index}"): None,
    ("POST", "/v1/acm/sessions/{session_id}/evict"): {"budget": {"max_tokens": 2000}},
    ("POST", "/v1/acm/sessions/{session_id}/prepare"): {"edits": [{"op": "fold", "messages": {"start": 0, "end": 1}}]},
    ("GET", "/v1/acm/sessions/{session_id}/prepare/{prepare_id}"): None,
    ("GET", "/v1/acm/sessions/{session_id}/export"): None,
    ("GET", "/v1/acm/sessions/{session_id}/rollout"): None,
    ("GET", "/v1/acm/sessions/{session_id}/totals"): None,
    ("GET", "/v1/acm/sessions/{session_id}/turns"): None,
    ("POST", "/v1/acm/sessions/{session_id}/tools/{name}"): {"arguments": {}},
    ("POST", "/v1/responses/compact"): {
        "model": MODEL,
        "session_id": "mine",
        "previous_response_id": "r",
        "input": "?",
    },
    ("GET", "/v1/acm/maps/{external_context_id}"): None,
    ("DELETE", "/v1/acm/maps/{external_context_id}"): None,
    ("GET", "/v1/acm/maps/{external_context_id}/history"): None,
    ("GET", "/v1/acm/maps/{external_context_id}/text"): None,
}
"""The routes about what somebody made, with a body that they take."""

LISTS = {("GET", "/v1/acm/sessions"), ("GET", "/v1/acm/maps"), ("GET", "/v1/acm/usage")}
STREAMS = {("GET", "/v1/acm/events")}
MAKES = {
    ("POST", "/v1/acm/sessions"),
    ("POST", "/v1/acm/sessions/{session_id}/import"),
    ("PUT", "/v1/acm/maps/{external_context_id}"),
}

TENANTLESS = {
    **dict.fromkeys(["/health", "/load", "/metrics", "/ping", "/version", "/v1/models", "/v1/acm/tools"], "one server"),
    **dict.fromkeys(["/is_scaling_elastic_ep", "/scale_elastic_ep", "/kv_event_sources"], "one server"),
    **dict.fromkeys(["/tokenize", "/detokenize"], "text in, tokens out"),
    **dict.fromkeys(
        [f"/v1/{name}/render" for name in ("chat/completions", "completions", "messages", "responses")], "a text"
    ),
    **dict.fromkeys(["/v1/chat/completions/derender", "/v1/completions/derender"], "tokens in, text out"),
    "/v1/messages/count_tokens": "a text",
    "/inference/v1/abort_requests": "ids of requests, which a client may choose: refused where there are several keys",
    "/v1/responses/{response_id}": "responses that vLLM stores where it is told to: not with several keys",
    "/v1/responses/{response_id}/cancel": "the same",
    "/v1/systemone": "answers 501: no model of ours has it",
}
"""The other routes, and why nobody's text is behind them."""


@pytest.fixture(scope="module")
def url(keyed_server: KeyedServer) -> str:
    return keyed_server.running.url


def test_every_route_stands_in_the_matrix(url: str) -> None:
    paths = http.get(f"{url}/openapi.json").json()["paths"]
    served = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    known = {("POST", path) for path in SPELLINGS} | {*OWNED, *LISTS, *STREAMS, *MAKES}
    assert {(method, path) for method, path in served - known if path not in TENANTLESS} == set()
    assert known <= served


def test_security_says_which_routes_ask_for_a_key(url: str) -> None:
    """A method that no route has is refused behind the key, so nothing is done where none is asked for."""
    page = (Path(__file__).parents[3] / "SECURITY.md").read_text(encoding="utf-8")
    guarded = tuple(re.findall("`(.+?)`", page.partition("vLLM checks keys below ")[2].partition("\n")[0]))
    named = re.findall("`(.+?)`", page.partition("Its other routes, such as ")[2].partition("\n")[0])
    paths = {*http.get(f"{url}/openapi.json").json()["paths"], *SPELLINGS, *named}
    paths |= {f"{each}/none" for each in guarded}
    asked = {path: httpx.request("PATCH", url + path, timeout=http.SECONDS).status_code for path in paths}
    assert {path for path, status in asked.items() if status == 401} == {p for p in paths if p.startswith(guarded)}
    answering = {path for path in SPELLINGS if not path.startswith(guarded)}
    assert answering <= set(named)
    assert not {path for path in named if path.startswith(guarded) or asked[path] == 404}


@pytest.mark.parametrize(
    ("path", "spelling"), [(path, spelling) for path, spellings in SPELLINGS.items() for spelling in spellings]
)
def test_a_session_is_its_own_tenants(url: str, path: str, spelling: str) -> None:
    door, session = Door(url, path), f"{path.replace('/', '-')}-{spelling}"
    own, other = Guest("key-a", session, spelling=spelling), Guest("key-b", session, spelling=spelling)
    salted = Guest("key-a", session, "a grain", spelling)
    by_header = Guest("key-a", session, "another", spelling, "header")
    text = f"{uuid.uuid4()}: {READ}"
    assert door.ask(own, text, KEPT) == NOTHING
    assert door.ask(other, text, KEPT) == NOTHING, "the very same text"
    assert door.ask(salted, text, KEPT) == NOTHING
    assert door.ask(by_header, text, KEPT) == NOTHING
    edited = door.ask(own, f"{uuid.uuid4()}: the same asks.", KEPT)
    assert edited.moved > 300, "the control: one's own session moves"


@pytest.mark.parametrize("path", SPELLINGS)
def test_a_prompt_is_new_to_other_tenants(url: str, path: str) -> None:
    """A clock sees what the prefix cache has. It has something for the one that sent the text, and for nobody else."""
    door, text = Door(url, path), f"{uuid.uuid4()}: {READ}"
    own = Guest("key-a")
    assert door.ask(own, text, KEPT) == NOTHING
    by_header = Guest("key-a", salt="another", salt_spelling="header")
    for other in (Guest("key-b"), Guest("key-a", salt="a grain"), Guest("key-b", salt="a grain"), by_header):
        assert door.ask(other, text, KEPT) == NOTHING, other
    for same in (own, by_header, Guest("key-a", salt="another")):
        assert door.ask(same, text, KEPT).hits > 300, "the control: one's own text is found"


def _send(url: str, method: str, path: str, headers: dict[str, str], body: Any) -> int:
    named = path.format(
        session_id="mine", index=0, branch_id="b1", prepare_id="p1", name="context_search", external_context_id="mine"
    )
    return http._ask(method, url + named, headers=headers, **({} if body is None else {"json": body})).status_code


def test_what_somebody_made_is_not_there_for_others(url: str) -> None:
    """Each route about a session or a map, asked by the other key and under a salt, while its owner has it."""
    own = {"Authorization": "Bearer key-a"}
    messages = [{"role": "user", "content": READ}, {"role": "assistant", "content": "Read."}]
    made = http.post(f"{url}/v1/acm/sessions", json={"session_id": "mine", "messages": messages}, headers=own)
    assert made.status_code == 201, made.text
    assert http.put(f"{url}/v1/acm/maps/mine", json={}, headers=own).status_code == (404 if FLEET else 201)
    strangers = [{"Authorization": "Bearer key-b"}, own | {"X-Cache-Salt": "a grain"}]
    for headers in strangers:
        answers = {route: _send(url, *route, headers, body) for route, body in OWNED.items()}
        assert {route: status for route, status in answers.items() if status != 404} == {}
        for _, path in LISTS:
            assert '"mine"' not in http.get(url + path, headers=headers).text
    for route in [("GET", "/v1/acm/sessions/{session_id}/context"), ("GET", "/v1/acm/maps/{external_context_id}")]:
        wanted = 404 if FLEET and "maps" in route[1] else 200
        assert _send(url, *route, own, None) == wanted, "the control: it was there all the time"
    for _, path in sorted(LISTS - ({("GET", "/v1/acm/maps")} if FLEET else set())):
        assert '"mine"' in http.get(url + path, headers=own).text


@pytest.mark.parametrize(("method", "path"), sorted({*OWNED, *LISTS, *STREAMS, *MAKES}))
def test_without_a_key_there_is_no_answer(url: str, method: str, path: str) -> None:
    assert _send(url, method, path, {}, {}) == 401
    assert _send(url, method, path, {"Authorization": "Bearer key-c"}, {}) == 401


def test_no_key_ends_a_request_by_its_id(url: str) -> None:
    asked = {"request_ids": ["chatcmpl-job-17"]}
    own = {"Authorization": "Bearer key-a"}
    assert http.post(f"{url}/inference/v1/abort_requests", json=asked, headers=own).status_code == 403


def test_the_inspector_is_a_page_without_data(url: str) -> None:
    """Whoever reaches the server may load the page. All that it shows comes from the routes above."""
    page = http.get(f"{url}/acm/")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
