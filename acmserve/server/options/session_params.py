"""Reads the session of one HTTP request: body, headers, and the `kv_transfer_params` a client may have sent itself.

Where the session id may stand (the first that is given counts, as in vLLM, but every one given must be valid):

    body `session_id`  >  header `X-Session-ID`  >  `vllm_xargs.session_id`  >  `kv_transfer_params.acm.session_id`

Decisions: `acm` without any session id is refused, for its values would otherwise be dropped in silence. JSON null
means "not given", as the OpenAI clients mean it. A session request makes one answer out of one prompt, since a receipt
describes one prompt. `n` above 1, beam search and several prompts in one completion are refused by name. But the header
alone is vLLM's own, and its clients know nothing of us: their request is answered without a receipt.

Pure: it knows JSON values and header names, neither vLLM nor any web framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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
from acmserve.server.options.loop_options import LOOP_KEYS
from acmserve.validation import check_object

SESSION_HEADER = "x-session-id"
CHAT_KEYS = (*LOOP_KEYS, "budget", "map", "precompute", "observations", "query_finished")
_Value = TypeVar("_Value", str, Repair)
ACM_KEYS = ("fidelity", "repair", *CHAT_KEYS)


def parse_session_params(body: object, headers: Mapping[str, str]) -> SessionParams | None:
    """Return the session of a request, or None for a request that has nothing to do with sessions.

    `headers` answers lower-case names. A body that is no JSON object is not ours to judge: None.
    Raises InvalidRequest. Its `field` is a dotted path in the body, or `X-Session-ID`.
    """
    if not isinstance(body, Mapping):
        return None
    direct = _direct_params(body.get("kv_transfer_params"))
    session_id = _session_id(body, headers)
    fidelity, repair = _fidelity(body.get("acm"))
    if direct is not None:
        session_id = _agreed(direct.session_id, session_id, "session_id")
        fidelity = _agreed(direct.fidelity, fidelity, "fidelity")
        repair = _agreed(direct.repair, repair, "repair")
    check_may_repair(fidelity, repair, "acm.repair")
    if session_id is None:
        if body.get("acm") is not None:
            raise InvalidRequest(
                "session_id", "`acm` needs a session: send `session_id` in the body or the X-Session-ID header"
            )
        return None
    if is_plain(body, headers):
        return None
    check_one_answer(body)
    if direct is None:
        return SessionParams(session_id, fidelity, repair=repair)
    return replace(direct, session_id=session_id, fidelity=fidelity, repair=repair, account="")


def is_plain(body: object, headers: Mapping[str, str]) -> bool:
    """Whether vLLM's own header names a session, nothing of ours does, and one session could not give all answers."""
    if not isinstance(body, Mapping) or headers.get(SESSION_HEADER) is None:
        return False
    if any(body.get(name) is not None for name in ("session_id", "acm", "context_management")):
        return False
    if _direct_params(body.get("kv_transfer_params")) is not None:
        return False
    try:
        check_one_answer(body)
    except InvalidRequest:
        return True
    return False


def check_one_answer(body: Mapping[str, Any]) -> None:
    """Raise InvalidRequest when the request asks for more than one answer or has more than one prompt."""
    if body.get("n") not in (None, 1, "1"):
        raise InvalidRequest("n", "a session request gives one answer: send n = 1, or one request per answer")
    if body.get("use_beam_search") not in (None, False):
        raise InvalidRequest("use_beam_search", "a session request cannot use beam search")
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) > 1 and isinstance(prompt[0], str | list):
        raise InvalidRequest(
            "prompt", f"a session request has one prompt, this one has {len(prompt)}: send one request per prompt"
        )


def _session_id(body: Mapping[str, Any], headers: Mapping[str, str]) -> str | None:
    xargs = body.get("vllm_xargs")
    given = (
        ("session_id", body.get("session_id")),
        ("X-Session-ID", headers.get(SESSION_HEADER)),
        ("vllm_xargs.session_id", xargs.get("session_id") if isinstance(xargs, Mapping) else None),
    )
    valid = [check_session_id(value, field) for field, value in given if value is not None]
    return valid[0] if valid else None


def _fidelity(acm: object) -> tuple[str | None, Repair | None]:
    if acm is None:
        return None, None
    given = check_object(acm, "acm", ACM_KEYS)
    return check_fidelity(given.get("fidelity"), "acm.fidelity"), check_repair(given.get("repair"), "acm.repair")


def check_no_loop(body: object) -> None:
    """Raise InvalidRequest when a route that runs no context tools and knows no budget is asked to."""
    acm = body.get("acm") if isinstance(body, Mapping) else None
    for key in CHAT_KEYS:
        if isinstance(acm, Mapping) and acm.get(key) is not None:
            raise InvalidRequest(f"acm.{key}", "counts only in /v1/chat/completions; send the request there")


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
