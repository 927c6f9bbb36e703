"""Several API servers in one process: real apps, sessions and sockets between them, and a handler as the model."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import shutil
import socket
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from starlette.datastructures import State
from starlette.middleware import Middleware

from acmserve.context.storage.session_names import SharedNames
from acmserve.server.http.tenants import Tenants
from acmserve.server.options.session_params import SOURCES
from acmserve.server.sessions.storage import set_gauges
from acmserve.server.siblings.addressing import Addressing
from acmserve.server.siblings.ownership import Ownership
from acmserve.server.siblings.run_folder import make_run_folder
from acmserve.server.siblings.siblings import SiblingAnswers, SiblingMiddleware, Siblings
from tests.support import http
from tests.support.routes.vendor_app import Handler, _vendor_app, make_editor
from tests.support.server.acm_app import FirstSentence, make_server


class _Front(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@dataclass
class ApiServer:
    """One of several. `client` reaches it from outside."""

    app: FastAPI
    siblings: Siblings
    handler: Handler
    client: httpx.AsyncClient

    @property
    def sessions(self) -> Any:
        return self.app.state.acm_server.store


def _make_app(ownership: Ownership, index: int, folder: Path, handler: Handler, *, hands_over: bool) -> FastAPI:
    app = copy.copy(_vendor_app())
    app.state, app.middleware_stack = State(dict(app.state._state)), None
    app.state.openai_serving_chat = app.state.anthropic_serving_messages = handler
    app.state.acm_context_editor = make_editor(FirstSentence())
    server = app.state.acm_server = make_server()
    server.shares_maps = ownership.by_tenant or not hands_over
    siblings = app.state.acm_siblings = Siblings(folder, ownership.num_servers)
    if hands_over:
        server.store.names = SharedNames(lambda tenant, name: ownership.owner_of(tenant, name) == index)
        app.user_middleware = [Middleware(SiblingMiddleware, siblings=siblings), *app.user_middleware]
        addressing = Addressing(Tenants(has_api_keys=False), SOURCES, ownership)
        siblings.settle(
            index, addressing, SiblingAnswers(server.identifier.responses.of, lambda: set_gauges(server.store))
        )
    app.middleware_stack = app.build_middleware_stack()
    return app


async def _listen(app: FastAPI, path: Path) -> tuple[_Front, asyncio.Task[None]]:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    front = _Front(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
    task = asyncio.create_task(front.serve(sockets=[sock]))
    while not front.started:
        await asyncio.sleep(0.01)
    return front, task


@asynccontextmanager
async def sibling_apps(
    num_servers: int = 2, *, by_tenant: bool = False, hands_over: bool = True
) -> AsyncIterator[list[ApiServer]]:
    """The servers of a deployment. Without `hands_over` each keeps what reaches it: the control."""
    ownership, folder = Ownership(num_servers, by_tenant), make_run_folder()
    made, fronts = [], []
    for index in range(num_servers):
        handler = Handler()
        app = _make_app(ownership, index, folder, handler, hands_over=hands_over)
        path = folder / f"front-{index}.sock"
        fronts.append(await _listen(app, path))
        transport = httpx.AsyncHTTPTransport(uds=str(path), verify=False)  # no TLS, no certificates
        client = httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=http.SECONDS)
        made.append(ApiServer(app, app.state.acm_siblings, handler, client))
    await asyncio.gather(*(each.siblings.start(each.app) for each in made))
    try:
        yield made
    finally:
        for each in made:
            await each.client.aclose()
        for front, task in fronts:
            front.should_exit = True
            await task
        for each in made:
            await each.siblings.stop(each.app)
        shutil.rmtree(folder)
