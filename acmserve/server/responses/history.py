"""Where a request of /v1/responses goes on: behind an answer that the session holds, or from the beginning.

    previous_response_id    behind that answer, what came later is cut off
    conversation            behind everything
    neither                 the client sends its whole history

As with vLLM, an empty `previous_response_id` is the id of no answer, and a `conversation` without an id is none.

The session's transcript is the history, and holds an answer's id with its message. So the history has the bounds, the
tenant and the file of its session, and a restart keeps it. What was redacted is in no second place. Decision: the id is
found in one session only. Which session an id belongs to is not asked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acmserve.context.session.going_on import END, RESPONSE_ID, Behind
from acmserve.errors import InvalidRequest
from acmserve.server.identity.client_id import valid_id


def continued_from(body: Mapping[str, Any]) -> str | Behind | None:
    """The id of the answer that the request goes on from, `END`, or None. Raises InvalidRequest."""
    previous, conversation = body.get("previous_response_id"), body.get("conversation")
    if isinstance(conversation, Mapping):
        conversation = conversation.get("id")
    conversation = valid_id(conversation)
    if previous is not None and conversation is not None:
        raise InvalidRequest(
            "previous_response_id", "cannot be sent beside `conversation`.", "Leave one of the two out."
        )
    return END if conversation is not None else previous


def answer_fields(body: Mapping[str, Any], response_id: str) -> dict[str, Any]:
    """What the session keeps with the answer. Nothing where the client wants nothing stored."""
    return {} if body.get("store") is False else {RESPONSE_ID: response_id}
