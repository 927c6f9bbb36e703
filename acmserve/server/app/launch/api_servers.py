"""How many API servers a start gets, and what they may do. Each session lives in one of them, its owner.

    not said                      one, also where vLLM would start one for each data-parallel rank
    --api-server-count 2          two, which hand each request to the owner of its session (`server/siblings/`)
    ... with --map-model          refused by name: the sessions of a map have several owners
    ... with --infer-sessions     all sessions of an API key have one owner, and maps work
    vllm serve, two API servers   no transcripts: plain vLLM makes no folder for their sockets

A session goes to its rank from every API server (`engine/requests/session_rank.py`).
"""

from __future__ import annotations

import shutil
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import fields

from acmserve.errors import AcmError
from acmserve.server.options.config import ContextConfig
from acmserve.server.siblings.run_folder import make_run_folder

PAGE = "docs/guides/scale.md"
FOLDER = "acmserve_run_folder"
"""The argument that tells API servers the folder of their sockets."""
_WITHOUT_TRANSCRIPTS = frozenset(
    {"max_sessions", "share_prefixes", "session_from", "log_format"}
    | {"summary_model", "summary_url", "max_summary_tokens"}
)
"""Settings that count where nobody keeps a transcript, too."""
_OF_MAPS = frozenset({"map_model", "map_url", "max_map_tokens"})


def settle_api_servers(args: Namespace, config: ContextConfig, say: Callable[[str], None]) -> None:
    """One API server where the command line does not say, and a word about several. Raises `AcmError`."""
    if args.headless:
        return
    if args.api_server_count is None:
        args.api_server_count = 1
        if args.data_parallel_size > 1:
            say(f"one API server in front of {args.data_parallel_size} engines, which keeps the transcripts")
    elif args.api_server_count > 1:
        check_shared(args.api_server_count, config)
        whose = "the sessions of an API key have" if config.infer_sessions else "each session has"
        say(f"{args.api_server_count} API servers: {whose} one owner, to which the others hand requests over")


@contextmanager
def api_servers_folder(args: Namespace) -> Iterator[None]:
    """The folder of the sockets of several API servers, for as long as they run. Nothing for one."""
    if args.headless or (args.api_server_count or 1) == 1:
        yield
        return
    folder = make_run_folder()
    setattr(args, FOLDER, str(folder))
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_shared(count: int, config: ContextConfig) -> None:
    """Raise `AcmError` for a setting that several owners of sessions cannot keep."""
    name = None if config.infer_sessions else _given(config, _OF_MAPS)
    if name is not None:
        raise AcmError(
            f"{name} is for context maps, and {count} API servers share none. Leave out --api-server-count, or add "
            f"--infer-sessions, so that all sessions of an API key have one owner. See {PAGE}."
        )


def check_api_servers(count: int, config: ContextConfig) -> None:
    """Raise `AcmError` for a setting that several API servers without transcripts would pass over in silence."""
    name = _given(config, {f.name for f in fields(config)} - _WITHOUT_TRANSCRIPTS)
    if count > 1 and name is not None:
        raise AcmError(
            f"{name} needs transcripts, and {count} API servers of plain vLLM keep none. Start them with `acmserve "
            f"serve`, or leave out --api-server-count. See {PAGE}."
        )


def _given(config: ContextConfig, names: Collection[str]) -> str | None:
    """The flag of the first of these settings that is not its default."""
    given = (f.name for f in fields(config) if f.name in names and getattr(config, f.name) != f.default)
    name = next(given, None)
    return None if name is None else f"--{name.replace('_', '-')}"
