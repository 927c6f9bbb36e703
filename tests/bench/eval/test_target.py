"""What `acmserve eval` takes for a server with acmserve: one that lists sessions for whoever may ask."""

from __future__ import annotations

import httpx
import pytest
from starlette.testclient import TestClient

from acmserve.bench.eval.target import Target
from tests.support.server.acm_app import make_app, make_server

URL = "http://testserver/v1"


@pytest.mark.parametrize("address", ["127.0.0.1", "192.0.2.7"])
def test_a_server_without_keys_is_known_from_another_machine(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lists everybody's sessions for its own machine only."""
    app = make_app(make_server(has_api_keys=False))
    monkeypatch.setattr(httpx, "Client", lambda **_: TestClient(app, client=(address, 50_000)))
    assert Target.find(URL, "toy", None, {}).has_acm


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(404, json={"detail": "Not Found"}),
        httpx.Response(200, html="<p>a page for every path</p>"),
        httpx.Response(200, json={"message": "an object for every path"}),
        httpx.Response(200, json=["a list for every path"]),
    ],
)
def test_a_server_that_lists_no_sessions_has_no_acmserve(
    answer: httpx.Response, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = httpx.Client(transport=httpx.MockTransport(lambda _: answer))
    monkeypatch.setattr(httpx, "Client", lambda **_: plain)
    assert not Target.find(URL, "toy", None, {}).has_acm


@pytest.mark.parametrize(("status", "found"), [(200, 2), (404, None)])
def test_updates_behind_one_session_are_counted(status: int, found: int | None) -> None:
    """Those that failed included, and neither edits by hand nor those of other questions."""
    changes = [("model", "mine"), ("edit", ""), ("model", "other"), ("model", "mine")]
    told = {"data": [{"kind": kind, "session_id": session} for kind, session in changes]}
    plain = httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(status, json=told)))
    assert Target(URL, "toy", True, {}, plain).num_updates("corpus", "salt", "mine") == found
