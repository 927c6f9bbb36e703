"""The address of a server elsewhere, as a flag gives it: one that requests can be sent below.

    --summary-url http://localhost:8001/v1      a scheme, a host, and at most a port and a path

It asks nobody. Whether a server is there is known at the first request.
"""

from __future__ import annotations

import re
from typing import Any

from acmserve.errors import InvalidRequest
from acmserve.validation import echo

REMEDY = "Give the address that its routes stand below, for instance http://localhost:8001/v1."
MODEL2VEC = "model2vec:"
"""Begins an embedder that is a folder, and no server."""
_SCHEMES = ("http", "https")
_MAX_PORT = 65535


def check_base_url(url: str, flag: str, remedy: str = REMEDY) -> None:
    """Raise `InvalidRequest` for an address that no request can be sent to. It says no password and no query."""
    problem = _problem(url)
    if problem:
        raise InvalidRequest(flag, f"{echo(_without_secrets(url))} {problem}.", remedy)


def check_embedder_url(spec: str) -> None:
    """Raise `InvalidRequest` unless an embedder is none, a folder, or an address with perhaps `#model` behind it."""
    if spec and not spec.startswith(MODEL2VEC):
        remedy = "Give http://HOST:PORT, http://HOST:PORT#MODEL, or model2vec:FOLDER."
        check_base_url(spec.partition("#")[0], "--embedder", remedy)


def _problem(url: str) -> str:
    """What is wrong with an address, "" for one that is right. Paths are added to it, so it ends with its own."""
    if not url.lower().startswith(tuple(f"{scheme}:" for scheme in _SCHEMES)):
        return "does not begin with http:// or https://"
    if url.split() != [url]:
        return "has a space in it"
    parsed = _read(url)
    if parsed is None or not (parsed.port is None or 1 <= parsed.port <= _MAX_PORT):
        return "has no host and port that can be read"
    if not parsed.host:
        return "names no host"
    if "#" in url:
        return "has a fragment, behind #"
    return "has a query, behind ?" if "?" in url else ""


def _read(url: str) -> Any:
    """The address as the client of requests reads it, None where it cannot. Imported here, for a start is quick."""
    import httpx

    try:
        return httpx.URL(url)
    except httpx.InvalidURL:
        return None


def _without_secrets(url: str) -> str:
    """The address without user, password and query."""
    hidden = re.sub(r"^((?:https?:/*)?).*@", r"\1***@", url, flags=re.IGNORECASE | re.DOTALL)
    return re.sub(r"\?.*", "?***", hidden, flags=re.DOTALL)
