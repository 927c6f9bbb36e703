"""Finished queries on their way to a map, as they wait: copies of what is told of them, and nothing else.

messages of a query --finished_query--> FinishedQuery, of a bounded size --MapUpdates.schedule--> queue
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from acmserve.context.maps.trajectory import KeptQuery, keep
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.message import Message
from acmserve.server.maps.redacted import RedactedNow, redacted_now, sources_of
from acmserve.server.options.map_options import DEFAULT_UPDATE, UpdateOptions


@dataclass(frozen=True, slots=True)
class FinishedQuery:
    """What a map is to learn from: what is told of one query, from the question to the answer.

    `sources` are sessions whose text its session began with. `num_chars` is what it holds with its options.
    """

    kept: KeptQuery
    session_id: str = ""
    options: UpdateOptions = DEFAULT_UPDATE
    sources: frozenset[str] = frozenset()
    num_chars: int = 0

    def without(self, redacted: RedactedNow) -> FinishedQuery:
        """The query without what was redacted, the very object where there is none of it."""
        kept, told = redacted.cut_query(self.kept), self.options.ground_truth
        cut = None if told is None else redacted.cut_text(told)
        if cut is told and kept is self.kept:
            return self
        return replace(self, kept=kept, options=replace(self.options, ground_truth=cut))


def finished_query(
    messages: Sequence[Message], session_id: str, update: UpdateOptions, state: SessionState, max_chars: int
) -> FinishedQuery:
    """What `max_chars` characters tell of a query of a session of this state.

    What was redacted there is cut out: `ground_truth` may quote it.
    """
    kept = keep(messages, max_chars)
    num_chars = sum(message.num_chars for message in kept.messages) + _num_chars(update)
    query = FinishedQuery(kept, session_id, update, sources_of(state), num_chars)
    return query.without(redacted_now(state, state)) if state.redacted else query


def _num_chars(update: UpdateOptions) -> int:
    told = (update.model, update.ground_truth, update.prompts.distiller, update.prompts.cartographer)
    return sum(len(text or "") for text in told) + len(json.dumps(dict(update.vllm_xargs), default=str))
