"""The inspector: the page `/acm/`, as files of this package.

    /acm/            static/index.html    the page, the same for everybody
    /acm/PATH        static/PATH          its modules and its style: `parts/`, `session/` (one session), `views/`

The page holds no data. It asks `/v1/acm` for it with the API key that its user gives, so the key guards what the page
shows. It is plain ES modules and no other people's code: there is nothing to build, and a checkout without node serves
it. The Content-Security-Policy lets it talk to this server and to nobody else, and run no script but its own files. It
knows neither sessions nor tenants.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

PREFIX = "/acm"
INDEX = "index.html"
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}


@cache
def page_files() -> dict[str, bytes]:
    """The files of the page by path."""
    return dict(_files_below(files("acmserve.server.inspector") / "static", ""))


def _files_below(folder: Traversable, place: str) -> Iterator[tuple[str, bytes]]:
    for file in folder.iterdir():
        if file.is_dir():
            yield from _files_below(file, f"{place}{file.name}/")
        elif file.name.rpartition(".")[2] in MEDIA_TYPES:
            yield place + file.name, file.read_bytes()


def inspector_router() -> APIRouter:
    """The routes of the page, to be included into an app without a prefix. They stand in no OpenAPI document."""
    page = APIRouter(prefix=PREFIX, include_in_schema=False)
    page.add_api_route("", _redirect, methods=["GET", "HEAD"])
    page.add_api_route("/", _index, methods=["GET", "HEAD"])
    page.add_api_route("/{name:path}", _file, methods=["GET", "HEAD"])
    return page


async def _redirect(request: Request) -> Response:
    return RedirectResponse(f"{request.scope.get('root_path', '')}{PREFIX}/", status_code=308)


async def _index(request: Request) -> Response:
    return _answer(INDEX, request)


async def _file(name: str, request: Request) -> Response:
    return _answer(name, request)


def _answer(name: str, request: Request) -> Response:
    content = page_files().get(name)
    if content is None:
        return Response(
            f"There is no {ascii(name)[:80]} here. The inspector is at {PREFIX}/.\n", 404, HEADERS, "text/plain"
        )
    tag = f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'
    headers = HEADERS | {"ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=MEDIA_TYPES[name.rpartition(".")[2]])
