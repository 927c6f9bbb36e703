"""How many API servers a start gets. Transcripts, and the locks of their sessions, live in one process.

    not said                 one, also where vLLM would start one for each data-parallel rank
    --api-server-count 2     two, without transcripts: edits, tools, budgets and /v1/acm are off, KV is reused
    ... with --budget        refused by name, as is every setting that needs a transcript

Decision: a store that several processes share would lock each turn across processes. Several servers behind a session
router do the same without one. A session goes to its rank from every API server (`engine/requests/session_rank.py`).
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import fields

from acmserve.errors import AcmError
from acmserve.server.options.config import ContextConfig

PAGE = "docs/guides/scale.md"
_WITHOUT_TRANSCRIPTS = frozenset(
    {"max_sessions", "share_prefixes", "session_from", "log_format"}
    | {"summary_model", "summary_url", "max_summary_tokens"}
)
"""Settings that count where nobody keeps a transcript, too."""


def settle_api_servers(args: Namespace, config: ContextConfig, say: Callable[[str], None]) -> None:
    """One API server where the command line does not say, and a word about several. Raises `AcmError`."""
    if args.headless:
        return
    if args.api_server_count is None:
        args.api_server_count = 1
        if args.data_parallel_size > 1:
            say(f"one API server in front of {args.data_parallel_size} engines, which keeps the transcripts")
    elif args.api_server_count > 1:
        check_api_servers(args.api_server_count, config)
        say(f"{args.api_server_count} API servers keep no transcripts: edits, tools, budgets and /v1/acm are off")


def check_api_servers(count: int, config: ContextConfig) -> None:
    """Raise `AcmError` for a setting that several API servers would pass over in silence."""
    given = (f.name for f in fields(config) if getattr(config, f.name) != f.default)
    name = next((name for name in given if name not in _WITHOUT_TRANSCRIPTS), None)
    if count > 1 and name is not None:
        flag = f"--{name.replace('_', '-')}"
        raise AcmError(
            f"{flag} needs transcripts, and {count} API servers keep none. Leave out --api-server-count, or start a "
            f"server for each replica behind a session router, see {PAGE}."
        )
