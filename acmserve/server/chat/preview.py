"""What the model would see of a request of a session now, without an answer: for counts, and for triggers.

    request of a turn               its session
    request that is only looked at  a copy of what its session would be: the session is neither made nor used

The history is taken in as the turn would do it, on a copy. Nothing is stored, and nothing is learned from it. No model
is asked, so a summary that the request or its budget would have written is not told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.session.waiting import committed
from acmserve.context.storage.session import Session
from acmserve.context.transcript.message import Message
from acmserve.errors import SessionLeft
from acmserve.server.budget.budgets import PromptOverhead
from acmserve.server.budget.conversation_summary import LivePrompt
from acmserve.server.chat.live_prompt import live_prompt
from acmserve.server.chat.options import ChatRequest, with_options
from acmserve.server.chat.recording import taken_in
from acmserve.server.chat.request import LoopRequest
from acmserve.server.context.server import ContextServer
from acmserve.server.maps.turn import placing
from acmserve.server.options.preset import with_preset
from acmserve.server.precompute.background_request import frame_of


@dataclass(frozen=True, slots=True)
class Preview:
    """`messages` are what the model would see of the conversation, `body` is the request that it would get.

    `num_tokens` is about what the prompt would have. `live` asks behind it. `as_served` makes the tokens that the
    engine would get of those of the rendered prompt. `check_current` raises `SessionLeft` where something that is shown
    was redacted since.
    """

    messages: list[Message]
    body: dict[str, Any]
    num_tokens: int
    live: LivePrompt
    as_served: Callable[[Sequence[int]], list[int]]
    check_current: Callable[[], None]


async def preview_session(server: ContextServer, chat: ChatRequest) -> Preview:
    """Raises InvalidRequest where the turn would. A session that is not there yet is not made."""
    chat = with_options(server, chat)
    step = None if chat.loop is None else LoopRequest(chat.body, chat.loop)
    session = await _session_of(server, chat)
    check_current = partial(_check_current, server, chat, session.state, is_held=server.store.holds(session))
    state = taken_in(server, session.state, chat).state
    overhead = _overhead(server, chat, step)
    state, num_tokens = server.preview(session, state, overhead, chat.params.fidelity, chat.edits)
    messages = render(state, server.rules)
    body = {**chat.body, "messages": messages} if step is None else step.step(messages, 0, 0)
    frame = frame_of(chat.body if step is None else step.frame(), None if step is None else step.preset_name)
    live = live_prompt(server.sessions, session, chat.params, frame, None, chat.origin)
    return Preview(messages, body, num_tokens, live, _as_served(server, chat), check_current)


def _as_served(server: ContextServer, chat: ChatRequest) -> Callable[[Sequence[int]], list[int]]:
    """Puts the tokens that were sampled into a prompt, as its request would. A fork has those of its main thread."""
    placement = None if chat.found is None else chat.found.placement
    forked_from = None if placement is None else placement.forked_from
    served = server.served.known(chat.tenant, forked_from or chat.params.session_id)
    return list if served is None else partial(served.splice, max_tokens=server.budgets.window)


async def _session_of(server: ContextServer, chat: ChatRequest) -> Session:
    """The session of a request as it is when nobody holds it. A copy where the request is only looked at."""
    key = (chat.tenant, chat.params.session_id)
    foresee = None if chat.found is None else chat.found.foresee
    if foresee is not None:
        await server.sessions.idle(key)
        return Session(*key, committed(foresee()))
    if not server.store.has(*key):
        return Session(*key)
    session = server.store.get(*key)
    async with server.sessions.held(session):
        return session


def _check_current(server: ContextServer, chat: ChatRequest, seen: SessionState, *, is_held: bool) -> None:
    """Raise `SessionLeft` where the session knows of other redactions than it did. One that was held may be gone."""
    key, now = (chat.tenant, chat.params.session_id), SessionState()
    if chat.found is not None and chat.found.foresee is not None:
        now = chat.found.foresee()
    elif server.store.has(*key):
        now = server.store.peek(*key).state
    if now.redacted != seen.redacted or (is_held and now.digest_key != seen.digest_key):
        raise SessionLeft(chat.params.session_id)


def _overhead(server: ContextServer, chat: ChatRequest, step: LoopRequest | None) -> PromptOverhead:
    """What stands beside the messages of a request, and what writes its prompts."""
    place = placing(None)
    if step is None:
        return PromptOverhead(chat.body.get("tools") or (), renderer=server.renderer(chat.body, place))
    preset = step.preset_name
    renderer = server.renderer(step.frame(), lambda shown: with_preset(place(shown), preset))
    return PromptOverhead(step.tools, step.preset, renderer=renderer)
