"""Whose a request is: the tenant, and the name that a session has in the engine for it.

A tenant is a digest of the API key, and where there is a cache salt, a slash and a digest of both. So the quota of a
key covers all its salts (`fair_share.py`). The name of a session in the engine is made of the tenant and the client's
name. So tenants who chose the same name never meet there.

Decision: each key has a cache salt of its own, so a prompt that another key sent is as new as any other, in its counts
and in its time. A salt of the client counts beside it. With `--share-prefixes` the prefix cache is everybody's, and
sessions are not.

Decision: name and salt are made at the last door in front of the engine (`exchange.tap_generate`). So a route of vLLM
that acmserve does not know cannot pass a raw session id. `CallerMiddleware` keeps the headers of the running request
for that door.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

SALT_HEADER = "x-cache-salt"
CALLER: ContextVar[Mapping[str, str]] = ContextVar("acmserve_caller")


class Tenants:
    """Keys count only on a server that asks for them: elsewhere every client sends another placeholder."""

    def __init__(self, has_api_keys: bool, *, share_prefixes: bool = False) -> None:
        self._has_api_keys = has_api_keys
        self._share_prefixes = share_prefixes

    def of(self, headers: Mapping[str, str], cache_salt: str | None = None) -> str:
        """The tenant of a request, "" where it has neither key nor salt.

        The salt may stand in the body (chat) or in the header `X-Cache-Salt`. `Authorization` is the only header that a
        server with keys takes one from (vllm/entrypoints/serve/middleware/authenticate.py:31). Anthropic's clients send
        it when they are given an `auth_token`. Their `x-api-key` is answered with 401 before it comes here.
        """
        key = headers.get("authorization", "").partition(" ")[2] if self._has_api_keys else ""
        salt = cache_salt or headers.get(SALT_HEADER, "")
        account = _digest(f"{key}\n") if key else ""
        return account + "/" + _digest(f"{key}\n{salt}") if salt else account

    def cache_salt(self, account: str, cache_salt: str | None) -> str | None:
        """The salt of a prompt that `account` sends with a `cache_salt` of its own, or with none."""
        if not account or self._share_prefixes:
            return cache_salt
        return _digest(f"{account}\n{cache_salt or ''}")


def salt_of(prompt: object) -> str | None:
    """The salt of a prompt as vLLM's routes hand it on, None where it has none."""
    return prompt.get("cache_salt") if isinstance(prompt, Mapping) else None


def salted(prompt: Any, tenants: Tenants, account: str) -> Any:
    """The prompt as the account may find it in the prefix cache. vLLM's routes send a mapping, or pieces of input."""
    if isinstance(prompt, AsyncGenerator):
        return _pieces_salted(prompt, tenants, account)
    if not isinstance(prompt, Mapping):
        return prompt
    salt = tenants.cache_salt(account, salt_of(prompt))
    return prompt if salt == salt_of(prompt) else {**prompt, "cache_salt": salt}


async def _pieces_salted(
    pieces: AsyncGenerator[Any, None], tenants: Tenants, account: str
) -> AsyncGenerator[Any, None]:
    """Input that is streamed, as vLLM's `StreamingInput`s."""
    async with aclosing(pieces):
        async for piece in pieces:
            yield replace(piece, prompt=salted(piece.prompt, tenants, account))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def account_of(tenant: str) -> str:
    """The API key's part of a tenant, "" without one. A client chooses salts as it likes, and no key."""
    return tenant.partition("/")[0]


def engine_session_id(tenant: str, session_id: str) -> str:
    """The name of a session in the engine."""
    if not tenant:
        return session_id
    return hashlib.blake2b(f"{tenant}\n{session_id}".encode(), digest_size=24).hexdigest()


class CallerMiddleware:
    """Sets `CALLER` to the headers of the request that runs."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            CALLER.set(Headers(scope=scope))
        await self._app(scope, receive, send)
