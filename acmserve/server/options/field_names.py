"""A field of acmserve's that is misspelt in a body of vLLM's routes: refused, where vLLM would ignore it in silence.

    inside `acm`      every unknown field is refused (`check_object`)
    beside it         "sesion_id", "session"     nearly a field of ours, and no field of anybody else
                      "fidelity"                 a field of `acm` in the wrong place
                      "store", "user", ...       passed on, as vLLM does

Decision: vLLM lets unknown fields pass, since clients of many vendors send their own. So only a near miss of the names
below is refused, and no name that the route's request has or that `--session-from` reads. A comparison takes much
longer than reading a name, so of many unknown fields only the first ones are compared. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice

from pydantic import BaseModel

from acmserve.errors import InvalidRequest
from acmserve.server.options.session_params import SOURCES, Source
from acmserve.validation import nearest, short_ascii

SESSION_ID = "session_id"
OURS = (SESSION_ID, "acm", "context_management")
IN_ACM = ("fidelity",)
MAX_COMPARED = 64
"""Unknown fields that are compared, in the order in which they were sent."""


def check_field_names(body: object, request: type[BaseModel], sources: Sequence[Source] = SOURCES) -> None:
    """Raise InvalidRequest for a near miss of a field of ours. `request` is what vLLM reads the body into."""
    if not isinstance(body, Mapping):
        return
    known = _fields(request)
    strange = list(islice((name for name in body if name not in known), MAX_COMPARED))
    if not strange:
        return
    read = {source.path.partition(".")[0] for source in sources if source.where == "body"}
    ours = [name for name in OURS if name != SESSION_ID or SESSION_ID in read]
    for name in sorted(strange):
        if name not in read:
            _check(name, ours)


def _check(name: str, ours: Iterable[str]) -> None:
    meant = nearest(name, tuple(ours))
    if meant is not None:
        raise InvalidRequest(short_ascii(name), f"is no field of this request. Did you mean '{meant}'?", "Correct it.")
    inside = nearest(name, IN_ACM)
    if inside is not None:
        raise InvalidRequest(
            short_ascii(name), f"is no field of this request. Did you mean 'acm.{inside}'?", f"Put '{inside}' into acm."
        )


@lru_cache(maxsize=16)
def _fields(request: type[BaseModel]) -> frozenset[str]:
    """The names by which a request knows its fields, and ours."""
    names = {*OURS, *request.model_fields}
    return frozenset(names | {field.alias for field in request.model_fields.values() if field.alias})
