"""Whose a request is: the tenant, and the name that a session has in the engine for it.

A tenant is a digest of the API key, and where there is a cache salt, a slash and a digest of both. So the quota of a
key covers all its salts (`fair_share.py`). The name of a session in the engine is made of the tenant and the client's
name. So tenants who chose the same name never meet there.

Decision: each key has a cache salt of its own. So a prompt that another key sent is as new as any other, in its counts
and in its time. A salt of the client counts beside it. With `--share-prefixes` the prefix cache is everybody's, and
sessions are not.

Decision: name and salt are made at the last door in front of the engine (`exchange.tap_generate`). So a route of vLLM
that acmserve does not know cannot pass a raw session id. `CallerMiddleware` keeps the headers of the running request
for that door. A salt of the header is put into the prompt there, too. A chat gets it in its body, so that what the
server sends for its session later has it.

Decision: `TENANT` is whose work runs. What is remembered of texts is remembered for it (`text_memory.py`). The
middleware sets it by the headers, and whoever reads a body with a salt sets it anew.

Decision: some routes of vLLM ask for no key. An `Authorization` there that is none of the server's keys is nobody's.
Each made-up key would be one more account otherwise, and the fair share of the others would be smaller.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

SALT_HEADER = "x-cache-salt"
CALLER: ContextVar[Mapping[str, str]] = ContextVar("acmserve_caller")
TENANT: ContextVar[str] = ContextVar("acmserve_tenant", default="")

# What vLLM takes as a `cache_salt` (vllm/entrypoints/generate/base/protocol.py:42).
_SALT_OF_BODIES = re.compile(r"[^@/\\\0]{1,128}")


class ApiKeys:
    """The keys that a server asks for. Only their digests are kept."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(dict.fromkeys(map(_digest_of_key, keys)))

    def __len__(self) -> int:
        return len(self._digests)

    def holds(self, key: str) -> bool:
        """Whether it is one of them. The time that this takes says nothing of them."""
        asked, is_held = _digest_of_key(key), False
        for digest in self._digests:
            is_held |= hmac.compare_digest(asked, digest)
        return is_held


class Tenants:
    """Keys count only on a server that asks for them: elsewhere every client sends another placeholder.

    `known` are those that it asks for. None: whoever comes here has shown one of them.
    """

    def __init__(self, has_api_keys: bool, *, known: ApiKeys | None = None, share_prefixes: bool = False) -> None:
        self._has_api_keys = has_api_keys
        self._known = known
        self._share_prefixes = share_prefixes

    def of(self, headers: Mapping[str, str], cache_salt: str | None = None) -> str:
        """The tenant of a request, "" where it has neither key nor salt.

        The salt may stand in the body (chat) or in the header `X-Cache-Salt`. `Authorization` is the only header that a
        server with keys takes one from (vllm/entrypoints/serve/middleware/authenticate.py:31). Anthropic's clients send
        it when they are given an `auth_token`. Their `x-api-key` is answered with 401 before it comes here.
        """
        key = self._key_of(headers)
        salt = cache_salt or headers.get(SALT_HEADER, "")
        account = _digest(f"{key}\n") if key else ""
        return account + "/" + _digest(f"{key}\n{salt}") if salt else account

    def _key_of(self, headers: Mapping[str, str]) -> str:
        """The key that counts for a request, "" where it has shown none."""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if not self._has_api_keys:
            return ""
        if self._known is None:
            return key
        return key if scheme.lower() == "bearer" and self._known.holds(key) else ""

    def cache_salt(self, account: str, cache_salt: str | None) -> str | None:
        """The salt of a prompt that `account` sends with a `cache_salt` of its own, or with none."""
        if not account or self._share_prefixes:
            return cache_salt
        return _digest(f"{account}\n{cache_salt or ''}")


def salt_of(prompt: object) -> str | None:
    """The salt of a prompt as vLLM's routes hand it on, None where it has none."""
    return prompt.get("cache_salt") if isinstance(prompt, Mapping) else None


def salt_in(headers: Mapping[str, str]) -> str | None:
    """The salt of a request whose body has none. One that vLLM would refuse in a body stands there as its digest."""
    salt = headers.get(SALT_HEADER)
    if not salt:
        return None
    return salt if _SALT_OF_BODIES.fullmatch(salt) else _digest(salt)


def with_salt(body: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
    """The body with the salt of its request. One of its own stays."""
    salt = salt_in(headers)
    return {**body, "cache_salt": salt} if salt is not None and body.get("cache_salt") is None else dict(body)


def salted(prompt: Any, tenants: Tenants, account: str, salt: str | None = None) -> Any:
    """The prompt as the account may find it in the prefix cache. vLLM's routes send a mapping, or pieces of input.

    `salt` is that of the request, for a prompt that has none.
    """
    if isinstance(prompt, AsyncGenerator):
        return _pieces_salted(prompt, tenants, account, salt)
    if not isinstance(prompt, Mapping):
        return prompt
    new = tenants.cache_salt(account, salt_of(prompt) or salt)
    return prompt if new == salt_of(prompt) else {**prompt, "cache_salt": new}


async def _pieces_salted(
    pieces: AsyncGenerator[Any, None], tenants: Tenants, account: str, salt: str | None
) -> AsyncGenerator[Any, None]:
    """Input that is streamed, as vLLM's `StreamingInput`s."""
    async with aclosing(pieces):
        async for piece in pieces:
            yield replace(piece, prompt=salted(piece.prompt, tenants, account, salt))


def _digest_of_key(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


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
    """Sets `CALLER` to the headers of the request that runs, and `TENANT` to whose it is by them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            CALLER.set(Headers(scope=scope))
            tenants: Tenants | None = getattr(scope["app"].state, "acm_tenants", None) if "app" in scope else None
            TENANT.set("" if tenants is None else tenants.of(CALLER.get()))
        await self._app(scope, receive, send)
