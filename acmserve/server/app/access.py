"""Who can reach the server: the keys that it asks for, and the address that it listens on.

A server without a key has one tenant. Whoever reaches its port reads every session. So it listens on this machine
alone, until its user names an address. It knows the command line, and no request.

vLLM's own store of responses knows no keys. A client may choose the id of its response, so an id is no secret.
Decision: it is refused beside several keys. Who made which response is vLLM's to know.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

from acmserve.errors import AcmError
from acmserve.server.app.early_checks import LOCAL_HOST
from acmserve.server.http.tenants import ApiKeys


def api_keys(args: Namespace) -> ApiKeys:
    """The keys that this server asks its clients for. None of them: whoever reaches it is served."""
    from vllm import envs

    return ApiKeys(key for key in getattr(args, "api_key", None) or [envs.VLLM_API_KEY] if key)


def has_api_keys(args: Namespace) -> bool:
    """Whether this server asks its clients for a key."""
    return len(api_keys(args)) > 0


def check_response_store(args: Namespace) -> None:
    """Raise `AcmError` where one key could read, go on with and end what vLLM stores for another one."""
    from vllm import envs

    if envs.VLLM_ENABLE_RESPONSES_API_STORE and len(api_keys(args)) > 1:
        raise AcmError(
            "VLLM_ENABLE_RESPONSES_API_STORE: vLLM gives a stored response to every API key that names its id, and "
            "this server asks for several keys; unset it, or start a server for each key"
        )


def listen_locally(args: Namespace, say: Callable[[str], None]) -> None:
    """Let a server without a key listen on 127.0.0.1, unless `--host` or `--uds` says otherwise, and say so."""
    if args.host is not None or args.uds is not None or has_api_keys(args):
        return
    args.host = LOCAL_HOST
    say(
        f"no API key is asked for, so the server listens on {LOCAL_HOST} only. "
        "--api-key KEY lets it listen everywhere, --host 0.0.0.0 does so without a key"
    )
