"""Where a session id may stand in a request: a table, one line for each place, in the order in which they count.

    session_id  >  X-Session-ID  >  vllm_xargs.session_id  >  what clients send anyway  >  previous_response_id ...
    '------------- ours: checked -------------------------'   '----------- theirs: never refused ---------------'

An id of ours must be valid, or the request is refused. An id that only the client's own protocol carries is taken as it
is. Where it is too long or has characters that no path can say, a digest of it is the id. `--session-from` changes
order and membership of the table. `header:NAME` and `body:PATH` in it are places that nobody has thought of here.

Decision: `thread-id` counts before `prompt_cache_key`, because the latter is a hint for a cache that several threads
may share. Pure. It knows JSON bodies and header names in lower case, neither sessions nor any web framework.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acmserve.errors import InvalidRequest
from acmserve.plan.request import MAX_SESSION_ID_CHARS, check_session_id
from acmserve.validation import echo

FLAG = "--session-from"
SESSION_HEADER = "x-session-id"
MAX_EMBEDDED_CHARS = 4096
"""Longest JSON text inside a body that a path is followed into."""

Lookup = Callable[[str], str | None]
"""The session that gave a response of this id, None where it is not known."""

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class Source:
    """One place. `where` is "header" or "body", `path` a header in lower case or a dotted path.

    `is_ours`: the field is acmserve's or vLLM's own, and its value is checked. `is_response`: the value is the id of an
    answer, which stands for the session that gave it. `sender` is the client known to send it, for people.
    """

    name: str
    where: str
    path: str
    sender: str
    is_ours: bool = False
    is_response: bool = False

    def read(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> object:
        """What stands there, None where nothing does."""
        return headers.get(self.path) if self.where == "header" else _walk(body, self.path.split("."))


SOURCES: tuple[Source, ...] = (
    Source("session_id", "body", "session_id", "acmserve's clients", is_ours=True),
    Source("X-Session-ID", "header", SESSION_HEADER, "vLLM's clients, opencode", is_ours=True),
    Source("vllm_xargs.session_id", "body", "vllm_xargs.session_id", "vLLM's clients", is_ours=True),
    Source("thread-id", "header", "thread-id", "Codex"),
    Source("prompt_cache_key", "body", "prompt_cache_key", "Codex"),
    Source("session-id", "header", "session-id", "Codex"),
    Source("x-claude-code-session-id", "header", "x-claude-code-session-id", "Claude Code"),
    Source("metadata.user_id", "body", "metadata.user_id.session_id", "Claude Code"),
    Source("x-session-affinity", "header", "x-session-affinity", "opencode"),
    Source("x-parent-session-id", "header", "x-parent-session-id", "opencode"),
    Source("conversation", "body", "conversation.id", "clients of /v1/responses"),
    Source("previous_response_id", "body", "previous_response_id", "clients of /v1/responses", is_response=True),
)
"""In order: the first place where an id stands counts, but every id of ours that is given must be valid."""

OURS: tuple[Source, ...] = tuple(source for source in SOURCES if source.is_ours)


@dataclass(frozen=True, slots=True)
class NamedSession:
    """A session that a request names, and the place where it does.

    `is_explicit`: a client of ours chose the id, and means this very session. False where the id comes from a client
    that knows nothing of acmserve, also where such a client sends it in `X-Session-ID`, too.
    """

    session_id: str
    source: Source
    is_explicit: bool


def find_named(
    body: Mapping[str, Any],
    headers: Mapping[str, str],
    sources: Sequence[Source] = SOURCES,
    lookup: Lookup | None = None,
) -> NamedSession | None:
    """The session that a request names, None where it names none. `headers` answers lower-case names.

    Raises InvalidRequest for an id of ours that is not valid, wherever it stands in the order.
    """
    given: list[tuple[str, Source]] = []
    for source in sources:
        value = source.read(body, headers)
        session_id = None if value is None else _accepted(value, source, lookup)
        if session_id is not None:
            given.append((session_id, source))
    if not given:
        return None
    session_id, first = given[0]
    is_theirs = first.where == "header" and any(other == session_id and not source.is_ours for other, source in given)
    return NamedSession(session_id, first, first.is_ours and not is_theirs)


def _accepted(value: object, source: Source, lookup: Lookup | None) -> str | None:
    if source.is_ours:
        return check_session_id(value, source.name)
    if source.is_response:
        return lookup(value) if lookup is not None and isinstance(value, str) else None
    return valid_id(value)


def valid_id(value: object) -> str | None:
    """A client's own id as a session id: itself, or a digest of one that is too long or odd. None for no id."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        return None
    text = value.strip()
    if len(text) <= MAX_SESSION_ID_CHARS and text.isprintable():
        return text
    return f"id-{digest_id(text)}"


def digest_id(text: str) -> str:
    """A short digest of an id, the same after a restart."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def parse_sources(text: str) -> tuple[Source, ...]:
    """The table that `--session-from` names: names, `header:NAME` and `body:PATH`, with commas. "": all, as they stand.

    Raises InvalidRequest for a name that does not exist, and for one that is given twice.
    """
    if not text.strip():
        return SOURCES
    sources: list[Source] = []
    for name in (part.strip() for part in text.split(",")):
        source = _source(name)
        if any((source.where, source.path) == (other.where, other.path) for other in sources):
            raise InvalidRequest(FLAG, f"names {echo(name)} twice.", "Name each place once.")
        sources.append(source)
    return tuple(sources)


def _source(name: str) -> Source:
    known = next((source for source in SOURCES if source.name.lower() == name.lower()), None)
    if known is not None:
        return known
    where, mark, path = name.partition(":")
    if mark and where == "header" and _HEADER_NAME.fullmatch(path):
        return Source(path.lower(), "header", path.lower(), "your clients")
    if mark and where == "body" and path and all(path.split(".")):
        return Source(path, "body", path, "your clients")
    names = ", ".join(source.name for source in SOURCES)
    raise InvalidRequest(
        FLAG,
        f"has no place {echo(name)}.",
        f"Name some of these in the order in which they count: {names}. Or write header:NAME or body:PATH.",
    )


def _walk(value: object, path: Sequence[str]) -> object:
    """The value at a dotted path. A text on the way that is a JSON object is read, a last `id` may be left out."""
    for number, step in enumerate(path):
        if isinstance(value, str) and number:
            if step == "id" and number == len(path) - 1:
                return value
            value = _embedded(value)
        if not isinstance(value, Mapping):
            return None
        value = value.get(step)
    return value


def _embedded(text: str) -> object:
    if len(text) > MAX_EMBEDDED_CHARS or not text.lstrip().startswith("{"):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
