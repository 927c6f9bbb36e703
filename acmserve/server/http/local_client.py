"""Whether a request was made on this machine: what a server without a key asks before it shows everybody's names.

    connection   127.0.0.1, ::1, or a Unix socket    a proxy on this machine connects so, too
    headers      none that a proxy adds              X-Forwarded-For, Via, ...
    Host         an IP address, or localhost         a web page that renamed its own host to 127.0.0.1 asks by that name

A browser on this machine runs the pages of strangers. A page at `evil.example` may have its name resolved to 127.0.0.1
later, and is then of the same origin as this server. The header `Host` still says `evil.example`. A web page can choose
neither that header nor an IP address as its name.

A proxy that adds no header and renames the host looks like a client on this machine.
"""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

_LOCAL_NAME = "localhost"
_OF_PROXIES = frozenset({"forwarded", "via", "x-real-ip"})
_OF_PROXIES_PREFIX = "x-forwarded-"


def is_local(request: HTTPConnection) -> bool:
    """See the module. A request without the header `Host`, or with two of them, is not local."""
    asked = request.headers.getlist("host")
    return _is_loopback(request) and not _is_of_proxy(request.headers) and len(asked) == 1 and _is_no_name(asked[0])


def _is_loopback(request: HTTPConnection) -> bool:
    """Whether the connection is from this machine. One through a Unix socket has no address."""
    try:
        return request.client is None or not request.client.host or ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def _is_of_proxy(headers: Headers) -> bool:
    return any(name in _OF_PROXIES or name.startswith(_OF_PROXIES_PREFIX) for name in headers)


def _is_no_name(asked: str) -> bool:
    """Whether the host and port of a URL are an IP address or `localhost`, and nothing else stands beside them."""
    try:
        parts = urlsplit(f"//{asked}")
        host, _port = parts.hostname or "", parts.port
        behind = asked.lower().removeprefix(f"[{host}]" if ":" in host else host)
        if parts.netloc != asked or behind[:1] not in ("", ":"):
            return False
        return host.removesuffix(".") == _LOCAL_NAME or ip_address(host) is not None
    except ValueError:
        return False
