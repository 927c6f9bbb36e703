"""Who may list: on a server without keys a list shows everybody's names, and a name is all that it takes."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from tests.support.server.acm_app import make_app, make_server

LISTS = ["/v1/acm/sessions", "/v1/acm/maps", "/v1/acm/usage"]


def client_at(address: str, *, has_api_keys: bool = False, **headers: str) -> TestClient:
    return TestClient(make_app(make_server(has_api_keys=has_api_keys)), headers=headers, client=(address, 50_000))


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
    assert client_at(address, **{"X-Cache-Salt": "mine"}).get(path).status_code == 200
    assert client_at(address, has_api_keys=True, Authorization="Bearer key").get(path).status_code == 200


def test_others_may_use_a_session_whose_name_they_know() -> None:
    client = client_at("192.0.2.7")
    made = client.post("/v1/acm/sessions", json={"session_id": "known"})
    assert made.status_code == 201
    assert client.get("/v1/acm/sessions/known").status_code == 200
