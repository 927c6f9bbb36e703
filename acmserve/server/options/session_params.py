"""Reads the session of one HTTP request: body, headers, and the `kv_transfer_params` a client may have sent itself.

    session_id > X-Session-ID > vllm_xargs.session_id   kv_transfer_params.acm   thread-id > ... > previous_response_id
    '- checked' '--- vLLM's: never refused --------' = '---- checked -----' > '------ theirs: never refused --------'

Where the id may stand says the table `SOURCES`, one line for each place, in the order in which they count. The one of
`kv_transfer_params.acm` counts between ours and theirs. Beside one of ours it has to be the same. A `session_id` must
be valid, or the request is refused, and so must that of `kv_transfer_params.acm`. An id in any other place is taken as
it is, or as a digest (`client_id.py`).
`--session-from` changes order and membership of the table (`session_from.py`).

Decisions: `acm` without any session id is refused, for its values would otherwise be dropped in silence. JSON null
means "not given", as the OpenAI clients mean it. So does an empty id, as with vLLM, and an id in `vllm_xargs` that is
no text. `thread-id` counts before `prompt_cache_key`, because the latter is a
hint for a cache that several threads may share. A session request makes one answer out of one prompt, since a receipt
describes one prompt. `n` above 1, beam search and several prompts in one completion are refused by name. A group of
answers that is recorded for training (`acm.rollout`) may have `n` above 1. But a client whose session is named by
vLLM's header or its own protocol knows nothing of us. Its request is answered without a receipt then.

Pure: it knows JSON values and header names in lower case, neither vLLM nor any web framework.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from acmserve.errors import InvalidRequest
from acmserve.plan.repair import Repair
from acmserve.plan.request import (
    SessionParams,
    check_fidelity,
    check_may_repair,
    check_repair,
    check_session_id,
    parse_acm_params,
)
from acmserve.server.identity.client_id import taken_id, valid_id
from acmserve.server.options.loop_options import LOOP_KEYS
from acmserve.validation import check_boolean, check_object, echo

DIRECT = "kv_transfer_params.acm.session_id"
CHAT_KEYS = (*LOOP_KEYS, "budget", "map", "precompute", "observations", "query_finished", "rollout")
_Value = TypeVar("_Value", str, Repair)
ACM_KEYS = ("fidelity", "repair", "speculate", *CHAT_KEYS)
SESSION_HEADER = "x-session-id"
MAX_EMBEDDED_CHARS = 4096
"""Longest JSON text inside a body that a path is followed into."""

Lookup = Callable[[str], str | None]
"""The session that gave a response of this id, None where it is not known."""


@dataclass(frozen=True, slots=True)
class Source:
    """One place. `where` is "header" or "body", `path` a header in lower case or a dotted path.

    `is_ours`: the field is acmserve's or vLLM's own. `is_response`: the value is the id of an
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
"""In order: the first place where an id stands counts, but a `session_id` that is given must be valid."""
_OURS = SOURCES[0]


@dataclass(frozen=True, slots=True)
class NamedSession:
    """A session that a request names, and the place where it does.

    `is_explicit`: a client of ours chose the id, and means this very session. False where the id comes from a client
    that knows nothing of acmserve, also where such a client sends it in `X-Session-ID`, too.
    """

    session_id: str
    source: Source
    is_explicit: bool


@dataclass(frozen=True, slots=True)
class NamedRequest:
    """What a request says of its session. `session_id` of `params` is the one that the client knows.

    `found_by` names the place of the id. `is_explicit`: a client of ours chose it.
    """

    params: SessionParams
    found_by: str
    is_explicit: bool


def parse_session_request(
    body: object,
    headers: Mapping[str, str],
    sources: Sequence[Source] = SOURCES,
    lookup: Lookup | None = None,
    *,
    session_id: str | None = None,
) -> NamedRequest | None:
    """Return what a request says of its session, or None for one that has nothing to do with sessions.

    `headers` answers lower-case names. A body that is no JSON object is not ours to judge: None. `session_id` is the
    one of a request that names none, where it was found otherwise.
    Raises InvalidRequest. Its `field` is a dotted path in the body, or `X-Session-ID`.
    """
    if not isinstance(body, Mapping):
        return None
    direct = _direct_params(body.get("kv_transfer_params"))
    named = find_named(body, headers, sources, lookup)
    given_id = None if named is None else named.session_id
    is_explicit = named is not None and named.is_explicit
    fidelity, repair = _fidelity(body.get("acm"))
    if direct is not None:
        is_ours = named is not None and named.source.is_ours
        given_id = _agreed(direct.session_id, given_id if is_ours else None, "session_id")
        fidelity = _agreed(direct.fidelity, fidelity, "fidelity")
        repair = _agreed(direct.repair, repair, "repair")
        named, is_explicit = (named if is_ours else None), True
    check_may_repair(fidelity, repair, "acm.repair")
    given_id = session_id if given_id is None else given_id
    if given_id is None:
        if body.get("acm") is not None:
            raise InvalidRequest(
                "session_id", "`acm` needs a session: send `session_id` in the body or the X-Session-ID header"
            )
        return None
    if _is_plain(body, named):
        return None
    check_one_answer(body)
    speculate = _speculate(body.get("acm"), fidelity)
    params = SessionParams(given_id) if direct is None else replace(direct, account="", level=None, draft=False)
    params = replace(params, session_id=given_id, fidelity=fidelity, repair=repair, speculate=speculate)
    return NamedRequest(params, DIRECT if named is None else named.source.name, is_explicit)


def is_plain(body: object, headers: Mapping[str, str], sources: Sequence[Source] = SOURCES) -> bool:
    """Whether one session could not give all answers, and nothing of ours names it: vLLM's header, or a client's."""
    return isinstance(body, Mapping) and _is_plain(body, find_named(body, headers, sources))


def names_none(body: object, headers: Mapping[str, str], sources: Sequence[Source], lookup: Lookup | None) -> bool:
    """Whether a request that one session could answer names none."""
    if not isinstance(body, Mapping) or _direct_params(body.get("kv_transfer_params")) is not None:
        return False
    return find_named(body, headers, sources, lookup) is None and not _has_several(body)


def _is_plain(body: Mapping[str, Any], named: NamedSession | None) -> bool:
    if named is None or (named.source.is_ours and named.source.where == "body"):
        return False
    if body.get("session_id") or any(body.get(name) is not None for name in ("acm", "context_management")):
        return False
    return _direct_params(body.get("kv_transfer_params")) is None and _has_several(body)


def _has_several(body: Mapping[str, Any]) -> bool:
    try:
        check_one_answer(body)
    except InvalidRequest:
        return True
    return False


def check_one_answer(body: Mapping[str, Any]) -> None:
    """Raise InvalidRequest when the request asks for more than one answer or has more than one prompt."""
    if body.get("n") not in (None, 1, "1") and not _is_group(body):
        raise InvalidRequest("n", "a session request gives one answer: send n = 1, or one request per answer")
    if body.get("use_beam_search") not in (None, False):
        raise InvalidRequest("use_beam_search", "a session request cannot use beam search")
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) > 1 and isinstance(prompt[0], str | list):
        raise InvalidRequest(
            "prompt", f"a session request has one prompt, this one has {len(prompt)}: send one request per prompt"
        )


def _is_group(body: Mapping[str, Any]) -> bool:
    """Whether several answers are wanted for training: all are recorded, the first one goes on in the session."""
    acm = body.get("acm")
    return isinstance(acm, Mapping) and acm.get("rollout") is True


def _fidelity(acm: object) -> tuple[str | None, Repair | None]:
    if acm is None:
        return None, None
    given = check_object(acm, "acm", ACM_KEYS)
    return check_fidelity(given.get("fidelity"), "acm.fidelity"), check_repair(given.get("repair"), "acm.repair")


def _speculate(acm: object, fidelity: str | None) -> bool | None:
    """What a request says of drafts. None where it says nothing."""
    given = acm.get("speculate") if isinstance(acm, Mapping) else None
    if given is None:
        return None
    wanted = check_boolean(given, "acm.speculate")
    if wanted and fidelity not in (None, "exact"):
        raise InvalidRequest("acm.speculate", f"is for fidelity 'exact', not '{fidelity}'; send one of them")
    return wanted


def check_no_loop(body: object, why: str, remedy: str) -> None:
    """Raise InvalidRequest when a request that keeps no transcript asks for what needs one.

    `why` says why it keeps none, and `remedy` what to do instead. Both are clauses without a full stop.
    """
    acm = body.get("acm") if isinstance(body, Mapping) else None
    for key in CHAT_KEYS:
        if isinstance(acm, Mapping) and acm.get(key) is not None:
            message = f"is {echo(acm[key])}, which needs a transcript, but {why}."
            raise InvalidRequest(f"acm.{key}", message, f"{remedy}, or leave acm.{key} out.")


def _direct_params(kv_transfer_params: object) -> SessionParams | None:
    """What the client says to the engine itself. Other connectors' keys are not ours to judge."""
    if not isinstance(kv_transfer_params, Mapping) or kv_transfer_params.get("acm") is None:
        return None
    return parse_acm_params(kv_transfer_params["acm"])


def _agreed(direct: _Value | None, given: _Value | None, name: str) -> _Value | None:
    if direct is not None and given is not None and direct != given:
        raise InvalidRequest(
            f"kv_transfer_params.acm.{name}", "contradicts the value given elsewhere in the request; send it once"
        )
    return given if direct is None else direct


def find_named(
    body: Mapping[str, Any],
    headers: Mapping[str, str],
    sources: Sequence[Source] = SOURCES,
    lookup: Lookup | None = None,
) -> NamedSession | None:
    """The session that a request names, None where it names none. `headers` answers lower-case names.

    Raises InvalidRequest for a `session_id` that is not valid, wherever it stands in the order.
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
        return _accepted_of_ours(value, source)
    if source.is_response:
        return lookup(value) if lookup is not None and isinstance(value, str) else None
    return valid_id(value)


def _accepted_of_ours(value: object, source: Source) -> str | None:
    """The id, or a digest of one that vLLM takes and a session cannot have."""
    if value == "":
        return None
    if source is _OURS:
        return check_session_id(value, source.name)
    return taken_id(value) if isinstance(value, str) else None


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
