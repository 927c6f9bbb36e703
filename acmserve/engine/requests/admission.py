"""Whose session a request belongs to, and whether KV may be reused for it at all.

Requests were validated in the front end: `engine/vllm/install.py` checks `SamplingParams` before they are sent to the
engine. A malformed object here means that a front end without the plugin sent it. Such a request is served without
session.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from acmserve.engine.requests.adapter_loads import AdapterLoads
from acmserve.engine.requests.media_ids import overlap
from acmserve.engine.vllm.model.media_rule import MediaRule
from acmserve.errors import InvalidRequest
from acmserve.plan.fidelity import RequestedFidelity
from acmserve.plan.owner import Owner
from acmserve.plan.repair import Span
from acmserve.plan.request import SessionParams, acm_of, check_session_id, parse_acm_params

if TYPE_CHECKING:
    from acmserve.engine.vllm.types import PoolingParams, Request, SamplingParams

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SessionTerms:
    """What a session request asked for. `refusal` says why nothing can be reused for this one, else None.

    `forget` holds whatever the refusal says: a redaction is carried out for requests that reuse nothing, too.
    `precompute` marks a background request, which is always `exact`. `account` is whose share of the source store the
    session counts for. An `unrecorded` request becomes no source, and neither does a `draft`. `foldable` are the pieces
    that an edit may take out. `level` is how bold `auto` is, None as the calibration says.
    """

    owner: Owner
    wish: RequestedFidelity
    refusal: str | None
    forget: bool = False
    precompute: bool = False
    account: str = ""
    unrecorded: bool = False
    foldable: tuple[Span, ...] = ()
    level: str | None = None
    draft: bool = False


def read_params(params: SamplingParams | PoolingParams | None, session_id: str | None) -> SessionParams | None:
    """The session of a request: `kv_transfer_params["acm"]`, else vLLM's own `session_id`, else None.

    Raises `InvalidRequest` naming the field. A background request asks for one token: vLLM has no request without.
    """
    acm = acm_of(params)
    if acm is not None:
        parsed = parse_acm_params(acm)
        max_tokens = getattr(params, "max_tokens", None)
        if parsed.precompute and max_tokens != 1:
            raise InvalidRequest("max_tokens", f"must be 1 for a background request, not {max_tokens!r}")
        return parsed
    if session_id is not None:
        return SessionParams(check_session_id(session_id, "session_id"))
    return None


def read_terms(request: Request, default_fidelity: str, loads: AdapterLoads, media: MediaRule) -> SessionTerms | None:
    """The terms of a session request. None for a request without session.

    `loads` knows the adapters, `media` what the model allows with images.
    """
    try:
        params = read_params(request.sampling_params, request.session_id)
    except InvalidRequest as invalid:
        logger.warning("acmserve: request %s is served without session: %s", request.request_id, invalid)
        return None
    if params is None or request.sampling_params is None:
        return None
    adapter, refused = (None, None) if request.lora_request is None else loads.of(request.lora_request)
    owner = Owner(params.session_id, request.cache_salt, adapter)
    fidelity = "exact" if params.precompute else params.fidelity or default_fidelity
    wish = RequestedFidelity(fidelity, params.repair)
    refused = refused or (media.refusal if request.mm_features else None)
    refusal = refused or _find_refusal(request)
    unrecorded = params.unrecorded or params.draft or refused is not None
    return SessionTerms(
        owner,
        wish,
        refusal,
        params.forget,
        params.precompute,
        params.account,
        unrecorded,
        params.foldable,
        level=params.level,
        draft=params.draft,
    )


def may_be_source(request: Request) -> bool:
    """Whether other requests may take this one's KV for the KV of its tokens at their positions.

    Embeddings have no token ids to be found by, and neither have media that share tokens. Of streaming input the media
    of later pieces were never seen here.
    """
    if request.prompt_embeds is not None or overlap(request.mm_features):
        return False
    return not (request.resumable and request.mm_features)


def _find_refusal(request: Request) -> str | None:
    refusals = {
        "media: two items share a token": overlap(request.mm_features),
        "request: prompt embeddings are not supported": request.prompt_embeds is not None,
        "request: streaming input is not supported": request.resumable,
        "request: it asks to skip the prefix cache (prompt_logprobs does)": request.skip_reading_prefix_cache,
    }
    return next((reason for reason, holds in refusals.items() if holds), None)


def num_served_tokens(request: Request) -> int:
    """Tokens of a finished request whose KV is computed and verified.

        computed      [ prompt ... sampled ... | in flight: not processed yet    ]
        tokens        [ prompt ... sampled ... last ]                                 the last one went through no step

    vLLM takes rejected drafts of speculative decoding back from the computed ones before it finishes a request. Those
    accepted behind a stop token stay, so the tokens that the request has are a bound, too.
    """
    num_processed = request.num_computed_tokens - request.num_in_flight_tokens
    return min(num_processed, request.num_tokens - 1)
