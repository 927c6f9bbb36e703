"""Makes one of several API servers know its siblings, from the app's arguments and the settings.

    parent    makes the folder of the sockets, and names it in the arguments that its children get
    child     attaches the layer to its app, says which one it is, and listens before clients are served

A server that vLLM starts by itself has no such folder, and keeps no transcripts where it is one of several.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from acmserve.server.app.launch.api_servers import FOLDER
from acmserve.server.context.server import ContextServer
from acmserve.server.http.tenants import Tenants
from acmserve.server.options.config import ContextConfig
from acmserve.server.options.session_from import parse_sources
from acmserve.server.sessions.storage import set_gauges
from acmserve.server.siblings.addressing import Addressing
from acmserve.server.siblings.ownership import Ownership
from acmserve.server.siblings.siblings import SiblingAnswers, SiblingMiddleware, Siblings
from acmserve.server.vllm.taps import before_serving, on_shutdown


def num_api_servers(args: Namespace) -> int:
    """How many API servers vLLM starts."""
    return getattr(args, "api_server_count", None) or 1


def has_sessions(args: Namespace) -> bool:
    """Whether transcripts are kept: by one API server, or by several that hand over."""
    return num_api_servers(args) == 1 or getattr(args, FOLDER, None) is not None


def ownership_of(args: Namespace, config: ContextConfig) -> Ownership:
    """Who owns what. Where content finds sessions, all of a tenant have to be in one place."""
    return Ownership(num_api_servers(args), by_tenant=config.infer_sessions)


def attach_siblings(app: FastAPI) -> None:
    """Put the layer in front of the app where it is one of several. Call it last: it ends first, and stands outside."""
    args = app.state.args
    if num_api_servers(args) == 1 or not has_sessions(args):
        return
    siblings = app.state.acm_siblings = Siblings(Path(getattr(args, FOLDER)), num_api_servers(args))
    app.add_middleware(SiblingMiddleware, siblings=siblings)
    before_serving(app, siblings.start)
    on_shutdown(app, siblings.stop)


def settle_siblings(state: Any, args: Namespace, config: ContextConfig, tenants: Tenants, index: int) -> None:
    """Say which of several API servers this is. Its sessions are open."""
    siblings: Siblings | None = getattr(state, "acm_siblings", None)
    if siblings is None:
        return
    server: ContextServer = state.acm_server
    addressing = Addressing(
        tenants, parse_sources(config.session_from), ownership_of(args, config), args.root_path or ""
    )
    known = SiblingAnswers(server.identifier.responses.of, lambda: set_gauges(server.store))
    siblings.settle(index, addressing, known)
