"""Who may list: on a server without keys a list shows everybody's names, and a name is all that it takes."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from starlette.requests import HTTPConnection

from acmserve.server.http.local_client import is_local
from tests.support.server.acm_app import LOCAL_URL, make_app, make_server

LISTS = ["/v1/acm/sessions", "/v1/acm/maps", "/v1/acm/usage"]


def client_at(address: str, *, has_api_keys: bool = False, **headers: str) -> TestClient:
    app = make_app(make_server(has_api_keys=has_api_keys))
    return TestClient(app, LOCAL_URL, headers=headers, client=(address, 50_000))


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "127.8.0.9"])
def test_this_machine_may_list(path: str, address: str) -> None:
    assert client_at(address).get(path).status_code == 200


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("address", ["192.0.2.7", "2001:db8::7", "a.host.name"])
def test_others_need_a_key_or_a_salt(path: str, address: str) -> None:
    refused = client_at(address).get(path)
    assert refused.status_code == 403
    assert "--api-key" in refused.json()["error"]["remedy"]
    assert "http://127.0.0.1" in refused.json()["error"]["remedy"]
    assert client_at(address, **{"X-Cache-Salt": "mine"}).get(path).status_code == 200
    assert client_at(address, has_api_keys=True, Authorization="Bearer key").get(path).status_code == 200


def test_others_may_use_a_session_whose_name_they_know() -> None:
    client = client_at("192.0.2.7")
    made = client.post("/v1/acm/sessions", json={"session_id": "known"})
    assert made.status_code == 201
    assert client.get("/v1/acm/sessions/known").status_code == 200


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8000", "[::1]:8000", "localhost", "localhost.:8000", "LocalHost:8000", "192.0.2.7", "[::1]"]
)
def test_this_machine_is_asked_by_its_address(host: str) -> None:
    assert client_at("127.0.0.1", Host=host).get(LISTS[0]).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8000", "localhost.evil.example", "evil:99999", "e{l", "[bad", "[::1", ""),
        *("127.0.0.1:99999", "127.0.0.1:port", "127.0.0.1/evil", "127.0.0.1?x", "evil@127.0.0.1", "127.0.0.1 evil"),
        *("127.0.0.1\t", "\xbc.example", "[::1]evil", "[v1.x]", "localhost..", "127.1", "2130706433"),
    ],
)
def test_a_page_that_renames_its_host_may_not_list(host: str) -> None:
    """It runs in a browser on this machine. A header that is no host at all is refused, too, and never ends in 500."""
    for path in LISTS:
        client = client_at("127.0.0.1")
        refused = client.get(path, headers=[(b"host", host.encode("latin-1"))])
        assert refused.status_code == 403, refused.text


@pytest.mark.parametrize(
    "name", ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Via", "X-Real-IP"]
)
def test_who_comes_through_a_proxy_may_not_list(name: str) -> None:
    """The proxy runs on this machine, and its clients anywhere."""
    for path in LISTS:
        assert client_at("127.0.0.1", **{name: "127.0.0.1"}).get(path).status_code == 403


def test_a_request_names_one_host() -> None:
    twice = [(b"host", b"localhost"), (b"host", b"evil.example")]
    assert client_at("127.0.0.1").get(LISTS[0], headers=twice).status_code == 403
    for hosts in ([], [b"localhost"]):
        scope = {"type": "http", "client": ("127.0.0.1", 1), "headers": [(b"host", host) for host in hosts]}
        assert is_local(HTTPConnection(scope)) is bool(hosts)
        assert is_local(HTTPConnection({**scope, "client": None})) is bool(hosts), "through a Unix socket"
