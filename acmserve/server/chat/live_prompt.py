"""How one more request of a session is made, for a summary that is asked for behind its conversation.

    chat request   {tools, template's arguments, salt, ...} + messages --.
    live prompt    the same                + messages so far, instruction '--> the same tokens up to the instruction

The request has the frame of the chat request, its preset and its context map, all of which stand in the prompt. Its
answer goes to the server alone. The session's memory of what was served stays as it is, and the engine's, too. It asks
nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from acmserve.context.session.turns.turn import TurnOrigin, TurnPurpose
from acmserve.context.storage.session import Session
from acmserve.context.transcript.message import Message
from acmserve.plan.request import SessionParams
from acmserve.server.budget.conversation_summary import LivePrompt
from acmserve.server.exchange.exchange import Exchange
from acmserve.server.maps.turn import MapTurn, placing
from acmserve.server.precompute.background_request import RequestFrame
from acmserve.server.sessions.sessions import Sessions


def live_prompt(
    sessions: Sessions,
    session: Session,
    params: SessionParams,
    frame: RequestFrame,
    turn_map: MapTurn | None,
    origin: TurnOrigin,
) -> LivePrompt:
    """The requests of a session that go on from what its model was served. `frame`, `origin`: of the chat request."""

    def body(messages: Sequence[Message]) -> dict[str, Any]:
        return frame.body(placing(turn_map)(messages)) | {"add_generation_prompt": True}

    def exchange(messages: Sequence[Message]) -> Exchange:
        summary = replace(origin, purpose=TurnPurpose.SUMMARY)
        made = sessions.exchange(session, replace(params, unrecorded=True), messages, None, turn_map, summary)
        made.remembers = False
        return made

    return LivePrompt(str(frame.fields.get("model") or ""), body, exchange)
