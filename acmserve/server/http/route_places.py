"""Routes of ours take the places of those of vLLM that have their path and method.

    before    GET /health of vLLM    POST /v1/messages of vLLM    GET /health of ours
    after     GET /health of ours    POST /v1/messages of vLLM

The first route that fits answers. vLLM from 0.32 on moves the routes of a plugin itself. 0.31 leaves them behind its
own, where nobody reaches them. Decision: they are moved on every release. vLLM then finds none that it could move.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute


def take_places(app: FastAPI, theirs: Sequence[BaseRoute]) -> None:
    """Move each route of `app` that is not one of `theirs` to where the first of theirs stands that it replaces.

    What another method of theirs answers stays. A route of ours that replaces none stays at the end.
    """
    known = {id(route) for route in theirs}
    left = [route for route in app.routes if id(route) not in known]
    ours = [route for route in left if isinstance(route, APIRoute)]
    routes: list[BaseRoute] = []
    for route in theirs:
        fitting = [each for each in ours if _replaces(each, route)]
        taken = {id(each) for each in fitting}
        routes += [each for each in left if id(each) in taken]
        left = [each for each in left if id(each) not in taken]
        routes += _rest(route, fitting)
    app.router.routes[:] = [*routes, *left]


def _replaces(ours: APIRoute, theirs: BaseRoute) -> bool:
    return isinstance(theirs, APIRoute) and theirs.path == ours.path and bool(theirs.methods & ours.methods)


def _rest(route: BaseRoute, fitting: Sequence[APIRoute]) -> list[BaseRoute]:
    """What is left of a route of theirs: itself, itself with fewer methods, or nothing."""
    if not fitting or not isinstance(route, APIRoute):
        return [route]
    rest = copy(route)
    rest.methods = route.methods.difference(*(each.methods for each in fitting))
    return [rest] if rest.methods else []
