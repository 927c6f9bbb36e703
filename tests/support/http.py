"""Requests of the tests to their own servers. httpx gives up after five seconds, which a busy machine takes.

These servers speak no TLS. A client that loads the certificates all the same needs longer for it than most answers do.
"""

from __future__ import annotations

from typing import Any

import httpx

SECONDS = 300.0


def _ask(method: str, url: str, **options: Any) -> httpx.Response:
    return httpx.request(method, url, **({"timeout": SECONDS, "verify": False} | options))


def get(url: str, **options: Any) -> httpx.Response:
    return _ask("GET", url, **options)


def post(url: str, **options: Any) -> httpx.Response:
    return _ask("POST", url, **options)


def put(url: str, **options: Any) -> httpx.Response:
    return _ask("PUT", url, **options)


def delete(url: str, **options: Any) -> httpx.Response:
    return _ask("DELETE", url, **options)
