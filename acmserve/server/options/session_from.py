"""The flag `--session-from`: order and membership of the table of places where a session id may stand.

    --session-from header:X-Chat,session_id      two places, one of them new: nothing else is read

Read once, when the server starts. It knows no request.
"""

from __future__ import annotations

import re

from acmserve.errors import InvalidRequest
from acmserve.server.options.session_params import SOURCES, Source
from acmserve.validation import echo

FLAG = "--session-from"
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


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
