"""Routes of ours are reached, whatever vLLM does with those of a plugin: 0.31 leaves them behind its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Mount
from starlette.testclient import TestClient

from acmserve.server.http.route_places import take_places


def says(text: str) -> Callable[[], str]:
    return lambda: text


def make_app(*, is_settled: bool = True) -> FastAPI:
    """A server with routes of vLLM, the last of which takes every path, and with ours behind them."""
    app = FastAPI(openapi_url=None)
    app.add_api_route("/both", says("theirs"), methods=["GET", "POST"])
    app.add_api_route("/twice", says("theirs"), methods=["GET"])
    app.add_api_route("/twice", says("theirs again"), methods=["GET"])
    app.add_api_route("/alone", says("theirs"), methods=["GET"])
    app.router.routes.append(Mount("/", FastAPI(openapi_url=None)))
    theirs = list(app.routes)
    app.add_api_route("/both", says("ours"), methods=["POST"])
    app.add_api_route("/twice", says("ours"), methods=["GET"])
    app.add_api_route("/new", says("ours"), methods=["GET"])
    if is_settled:
        take_places(app, theirs)
    return app


def answers(app: FastAPI) -> list[Any]:
    client = TestClient(app)
    return [client.get("/both").json(), client.post("/both").json(), client.get("/twice").json()]


def test_ours_answer_and_other_methods_stay() -> None:
    assert answers(make_app()) == ["theirs", "ours", "ours"]
    assert answers(make_app(is_settled=False)) == ["theirs"] * 3, "the control: vLLM 0.31 as it is"


def test_nothing_is_lost_and_nothing_is_answered_twice() -> None:
    routes = [(r.path, sorted(r.methods)) for r in make_app().routes if isinstance(r, APIRoute)]
    assert routes == [
        ("/both", ["POST"]),
        ("/both", ["GET"]),
        ("/twice", ["GET"]),
        ("/alone", ["GET"]),
        ("/new", ["GET"]),
    ]
    assert isinstance(make_app().routes[-2], Mount), "ours alone stand behind it where they replace nothing"
