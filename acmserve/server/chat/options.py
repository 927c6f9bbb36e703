"""A chat request of a session, and what it asks for beside an answer: `acm` and `context_management`.

It reads and checks. What is asked for is done by the turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request

from acmserve.context.eviction.clearing_edits import Compact, VendorEdit
from acmserve.context.session.budget import Budget
from acmserve.context.session.precompute_options import PrecomputeOptions, parse_precompute
from acmserve.context.transcript.observations import ObservationRule, parse_observations
from acmserve.errors import InvalidRequest
from acmserve.plan.request import SessionParams
from acmserve.server.context.server import ContextServer
from acmserve.server.options.context_management import FIELD, parse_context_management
from acmserve.server.options.loop_options import LoopOptions, parse_loop_options
from acmserve.server.options.map_options import MapOptions, parse_map_options
from acmserve.server.sessions.identifier import Identified
from acmserve.server.vllm.handlers import ChatCompletionRequest
from acmserve.validation import check_boolean


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat request of a session, validated: `request` is vLLM's object, `body` the JSON that it was read from.

    `found` says how its session was found. Request and body share nothing: vLLM changes the messages of its request in
    place, and those of `body` become the transcript.
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
    query_finished: bool | None = None


def read_options(server: ContextServer, chat: ChatRequest) -> ChatRequest:
    """The request with what its body asks for. Raises `InvalidRequest`."""
    acm = chat.body.get("acm") or {}
    budget, precompute = acm.get("budget"), acm.get("precompute")
    observations, finished = acm.get("observations"), acm.get("query_finished")
    edits = parse_context_management(chat.body)
    _check_no_pause(edits or ())
    return replace(
        chat,
        loop=parse_loop_options(acm, server.max_tool_calls),
        budget=None if budget is None else server.budgets.parse(budget, "acm.budget"),
        map=parse_map_options(acm.get("map")),
        edits=edits,
        precompute=None if precompute is None else parse_precompute(precompute, "acm.precompute"),
        observations=None if observations is None else parse_observations(observations, "acm.observations"),
        query_finished=None if finished is None else check_boolean(finished, "acm.query_finished"),
    )


def _check_no_pause(edits: Sequence[VendorEdit]) -> None:
    """Raise InvalidRequest for an answer that would end behind its summary: a chat's summary is no part of it."""
    for index, edit in enumerate(edits):
        if isinstance(edit, Compact) and edit.pause_after_compaction:
            raise InvalidRequest(
                f"{FIELD}.edits[{index}].pause_after_compaction",
                "has no form in a chat: the session keeps the summary itself, and the answer follows at once.",
                "Leave it out, or use /v1/messages.",
            )
