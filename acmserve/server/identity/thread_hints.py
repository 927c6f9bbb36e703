"""What a request hints at beside its session: that a sub-agent sends it, or that it is a side request.

    Claude Code   header x-claude-code-agent-id       sub-agents share the session id, each has an id of its own
    Codex         header x-codex-turn-metadata        JSON, `request_kind`: "turn" or "compaction", and `thread_id`

A registry of two readers. What nobody tells is seen in the request's text (`threads.py`). A turn of the thread that the
session is named after is the conversation, whatever text it has. Codex rewrites nearly all of that text when it
compacts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from acmserve.server.identity.client_id import valid_id

AGENT_HEADER = "x-claude-code-agent-id"
METADATA_HEADER = "x-codex-turn-metadata"
TURN = "turn"
HEADERS = (AGENT_HEADER, METADATA_HEADER)
SIDE_KINDS = frozenset({"compaction"})
"""Kinds of requests that are no turn of the conversation."""


@dataclass(frozen=True, slots=True)
class ThreadHints:
    """`agent` is the id of the sub-agent, "" for the main one. `kind` names a side request, "" for a turn.

    `thread` is the id of the thread of which this is a turn, "" where the client tells none. `resumes`: the session was
    found by a compaction of its own, which may be all that the client has kept.
    """

    agent: str = ""
    kind: str = ""
    thread: str = ""
    resumes: bool = False


def _agent(headers: Mapping[str, str]) -> ThreadHints:
    return ThreadHints(agent=valid_id(headers.get(AGENT_HEADER)) or "")


def _codex(headers: Mapping[str, str]) -> ThreadHints:
    try:
        metadata = json.loads(headers.get(METADATA_HEADER) or "null")
    except (ValueError, RecursionError):
        return ThreadHints()
    kind = metadata.get("request_kind") if isinstance(metadata, Mapping) else None
    if kind == TURN:
        return ThreadHints(thread=valid_id(metadata.get("thread_id")) or "")
    return ThreadHints(kind=kind) if isinstance(kind, str) and kind in SIDE_KINDS else ThreadHints()


READERS: tuple[Callable[[Mapping[str, str]], ThreadHints], ...] = (_agent, _codex)


def read_hints(headers: Mapping[str, str], *, resumes: bool = False) -> ThreadHints:
    """What the headers of a request say, names in lower case, and how its session was found."""
    said = [reader(headers) for reader in READERS]
    return ThreadHints(
        next((hints.agent for hints in said if hints.agent), ""),
        next((hints.kind for hints in said if hints.kind), ""),
        next((hints.thread for hints in said if hints.thread), ""),
        resumes,
    )
