"""A chat request of a session, and what it asks for beside an answer: `acm` and `context_management`.

It reads and checks. What is asked for is done by the turn.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from acmserve.context.eviction.clearing_edits import Compact, VendorEdit
from acmserve.context.session.budget import Budget
from acmserve.context.session.going_on import Behind
from acmserve.context.session.precompute_options import PrecomputeOptions, parse_precompute
from acmserve.context.session.state import SessionState
from acmserve.context.session.turns.turn import TurnOrigin
from acmserve.context.storage.session import Session
from acmserve.context.transcript.observations import ObservationRule, parse_observations
from acmserve.errors import Conflict, InvalidRequest
from acmserve.plan.request import SessionParams
from acmserve.server.context.server import ContextServer
from acmserve.server.maps.turn import MapTurn
from acmserve.server.options.context_management import FIELD, parse_context_management
from acmserve.server.options.loop_options import LoopOptions, parse_loop_options
from acmserve.server.options.map_options import (
    NO_MAPS,
    NO_MAPS_REMEDY,
    MapOptions,
    QueryFinished,
    parse_map_options,
    parse_query_finished,
)
from acmserve.server.sessions.identifier import Identified
from acmserve.server.sessions.rollout import begin_rollout
from acmserve.server.vllm.handlers import ChatCompletionRequest
from acmserve.validation import check_boolean

logger = logging.getLogger(f"vllm.{__name__}")

ASKING = ("acm", FIELD)
"""Fields in which a chat asks for something beside an answer."""
_OPTIONS = ("acm", "cache_salt")
"""Fields of ours, and of vLLM's, that mean the same on every route."""


@dataclass(frozen=True, slots=True)
class SessionCall:
    """A request of a session as one of vLLM's routes got it. `request` is the route's object, `body` its JSON.

    `leave(reason)` has vLLM's own function answer instead, with a session of the engine alone. The answer says why.
    """

    request: Any
    raw_request: Request
    body: dict[str, Any]
    found: Identified
    leave: Callable[[str], Awaitable[Response | None]]

    @property
    def params(self) -> SessionParams:
        return self.found.params

    @property
    def tenant(self) -> str:
        return self.found.tenant

    def chat(self, body: Mapping[str, Any]) -> ChatRequest:
        """The chat that this request is converted to, see `converted`."""
        return converted(body, self.body, self.raw_request, self.found)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat request of a session, validated: `request` is vLLM's object, `body` the JSON that it was read from.

    `found` says how its session was found. Request and body share nothing: vLLM changes the messages of its request in
    place, and those of `body` become the transcript. With `goes_on_from`, an answer's id, the session holds the
    history, and `body` has what follows. `answer_fields` are kept with the message of the answer. With `rollout` the
    session records what is sampled. `origin` is what its request to the engine is, where it is no loop. `check_current`
    raises `SessionLeft` where the messages have a summary of what was redacted since.
    """

    request: ChatCompletionRequest
    raw_request: Request
    body: dict[str, Any]
    params: SessionParams
    tenant: str
    loop: LoopOptions | None = None
    budget: Budget | None = None
    map: MapOptions | None = None
    edits: tuple[VendorEdit, ...] | None = None
    precompute: PrecomputeOptions | None = None
    found: Identified | None = None
    observations: ObservationRule | None = None
    query_finished: QueryFinished | None = None
    goes_on_from: str | Behind | None = None
    answer_fields: Mapping[str, Any] = field(default_factory=dict)
    rollout: bool = False
    origin: TurnOrigin = field(default_factory=TurnOrigin)
    check_current: Callable[[], None] | None = None

    @property
    def suites(self) -> tuple[str, ...]:
        """The suites whose tools the server carries out."""
        return () if self.loop is None else self.loop.suites


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer to be made: the session whose lock the caller holds, and what its request asks for.

    `is_watched`: something may be precomputed behind it. `found` says how its session was found, `dropped` what its
    history did not keep. `answer_fields` are kept with the message of the answer.
    """

    server: ContextServer
    session: Session
    options: LoopOptions
    params: SessionParams
    turn_map: MapTurn | None = None
    edits: tuple[VendorEdit, ...] | None = None
    is_watched: bool = True
    found: Identified | None = None
    dropped: Mapping[str, Any] = field(default_factory=dict)
    answer_fields: Mapping[str, Any] = field(default_factory=dict)
    rollout: bool = False


def converted(body: Mapping[str, Any], sent: Mapping[str, Any], raw_request: Request, found: Identified) -> ChatRequest:
    """A chat that a request of another route is converted to, with the options that were `sent` with it.

    Nothing is shared. Raises what pydantic raises for a body that is no chat.
    """
    options = {name: sent[name] for name in _OPTIONS if sent.get(name) is not None}
    whole = copy.deepcopy({**options, **body})
    request = ChatCompletionRequest.model_validate(copy.deepcopy(whole))
    origin = TurnOrigin(raw_request.url.path)
    return ChatRequest(request, raw_request, whole, found.params, found.tenant, found=found, origin=origin)


def with_options(server: ContextServer, chat: ChatRequest) -> ChatRequest:
    """The request with what it asks for beside an answer. The very object where that is nothing."""
    if chat.params.precompute:
        raise InvalidRequest(
            "kv_transfer_params.acm.precompute",
            "has no meaning in a chat of a session, whose answer is recorded.",
            "Use acm.precompute, or POST /v1/acm/sessions/{session_id}/prepare.",
        )
    if chat.body.get("acm") or chat.body.get(FIELD) is not None:
        return read_options(server, chat)
    return replace(chat, rollout=True) if server.rollout else chat


def fitting_record(chat: ChatRequest, state: SessionState) -> ChatRequest:
    """A request with `rollout`. It is not recorded where it does not fit the record of its session.

    Raises `Conflict` where it asked for that itself.
    """
    try:
        begin_rollout(state, chat.request.model or "", chat.suites)
    except Conflict as error:
        if (chat.body.get("acm") or {}).get("rollout") is not None:
            raise
        logger.warning("acmserve: an answer of session %r is not recorded: %s", chat.params.session_id, error)
        return replace(chat, rollout=False)
    return chat


def read_options(server: ContextServer, chat: ChatRequest) -> ChatRequest:
    """The request with what its body asks for. Raises `InvalidRequest`."""
    acm = chat.body.get("acm") or {}
    budget, precompute = acm.get("budget"), acm.get("precompute")
    observations, rollout = acm.get("observations"), acm.get("rollout")
    edits = parse_context_management(chat.body)
    _check_no_pause(edits or ())
    return replace(
        chat,
        loop=parse_loop_options(acm, server.max_tool_calls),
        budget=None if budget is None else server.budgets.parse(budget, "acm.budget"),
        map=_map_options(server, acm.get("map")),
        edits=edits,
        precompute=None if precompute is None else parse_precompute(precompute, "acm.precompute"),
        observations=None if observations is None else parse_observations(observations, "acm.observations"),
        query_finished=parse_query_finished(acm.get("query_finished")),
        rollout=server.rollout if rollout is None else check_boolean(rollout, "acm.rollout"),
    )


def _map_options(server: ContextServer, given: object) -> MapOptions | None:
    """The map that a request asks for. Raises `InvalidRequest`, also where its sessions live in several processes."""
    options = parse_map_options(given)
    if options is not None and not server.shares_maps:
        raise InvalidRequest("acm.map", NO_MAPS, NO_MAPS_REMEDY)
    return options


def _check_no_pause(edits: Sequence[VendorEdit]) -> None:
    """Raise InvalidRequest for an answer that would end behind its summary: a chat's summary is no part of it."""
    for index, edit in enumerate(edits):
        if isinstance(edit, Compact) and edit.pause_after_compaction:
            raise InvalidRequest(
                f"{FIELD}.edits[{index}].pause_after_compaction",
                "has no form in a chat: the session keeps the summary itself, and the answer follows at once.",
                "Leave it out, or use /v1/messages.",
            )
