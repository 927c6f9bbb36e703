"""What the model would see of a request of a session now, without an answer: for counts, and for triggers.

The history is taken in as the turn would do it, on a copy. Nothing is stored. No model is asked, so a summary that the
request or its budget would have written is not told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from acmserve.context.session.render import render
from acmserve.context.transcript.message import Message
from acmserve.server.budget.budgets import PromptOverhead
from acmserve.server.budget.conversation_summary import LivePrompt
from acmserve.server.chat.live_prompt import live_prompt
from acmserve.server.chat.options import ChatRequest, with_options
from acmserve.server.chat.recording import taken_in
from acmserve.server.chat.request import LoopRequest
from acmserve.server.context.server import ContextServer
from acmserve.server.precompute.background_request import frame_of


@dataclass(frozen=True, slots=True)
class Preview:
    """`messages` are what the model would see of the conversation, `body` is the request that it would get.

    `num_tokens` is about what the prompt would have. `live` asks behind it.
    """

    messages: list[Message]
    body: dict[str, Any]
    num_tokens: int
    live: LivePrompt


async def preview_session(server: ContextServer, chat: ChatRequest) -> Preview:
    """Raises InvalidRequest where the turn would. A session that is not there yet is not made."""
    chat = with_options(server, chat)
    step = None if chat.loop is None else LoopRequest(chat.body, chat.loop)
    overhead = PromptOverhead(chat.body.get("tools") or ()) if step is None else PromptOverhead(step.tools, step.preset)
    is_new = not server.store.has(chat.tenant, chat.params.session_id)
    session = server.store.open(chat.tenant, chat.params.session_id)
    try:
        async with server.sessions.locked(session):
            state = taken_in(server, session.state, chat).state
            state, num_tokens = server.preview(session, state, overhead, chat.params.fidelity, chat.edits)
    finally:
        if is_new and not session.state.entries:
            server.store.discard(session)
    messages = render(state, server.rules)
    body = {**chat.body, "messages": messages} if step is None else step.step(messages, 0, 0)
    frame = frame_of(chat.body if step is None else step.frame(), None if step is None else step.preset_name)
    live = live_prompt(server.sessions, session, chat.params, frame, None, state, chat.origin)
    return Preview(messages, body, num_tokens, live)
