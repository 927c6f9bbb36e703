"""What a user's next message does to the prompt: many templates drop the reasoning of all turns in front of it.

    served     user | think, call | result | think, call | result | think, answer
    next       user |        call | result |        call | result |        answer | user  ...
                     ^ first difference                                            ^ what the message says is open
                     '---------------------- certain, and to be computed ---------'

An edit with a hole in every step. Nobody asked for it, and it is known when the turn ends. Two messages that begin
differently are rendered behind the conversation. What both prompts have in common will be in the next prompt.

Decision: templates are run, not read. Only turns with reasoning, which ended with an answer, are rendered.
It does not know what a template drops, nor blocks. A client may change more than the template does. Then less of it is
used.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

from acmserve.context.precompute.candidate import PrecomputeCandidate, Reason
from acmserve.context.session.render import render
from acmserve.context.session.state import Author, SessionState, TranscriptEntry
from acmserve.context.transcript.message import Message, texts
from acmserve.context.transcript.parts import Role, has_reasoning, role_of, tool_calls
from acmserve.context.transcript.template_rules import TAKES_ALL, TemplateRules
from acmserve.server.exchange.served_prompts import ServedContext, num_common
from acmserve.server.precompute.background_request import Background, RequestFrame

MIN_TOKENS = 32
"""A rewritten part that is shorter is not worth a request."""

_OPENINGS = ("Yes.", "42?")
_END_OF_REASONING = "</think>"


async def after_next_message(
    background: Background,
    frame: RequestFrame,
    state: SessionState,
    served: ServedContext,
    rules: TemplateRules = TAKES_ALL,
) -> PrecomputeCandidate | None:
    """The context that the next message of the user makes, as far as it is known. None where nothing is rewritten."""
    if state.branch is not None or not ends_with_thought(state):
        return None
    prompts: list[list[int]] = []
    for opening in _OPENINGS:
        rendered = await background.render(frame.body(render(_with_message(state, opening), rules)))
        if rendered is None:
            return None
        prompts.append(rendered)
    num_certain = num_common(*prompts)
    prompt = served.splice(prompts[0], 2 * len(prompts[0]))
    num_open = len(prompts[0]) - num_certain
    num_new = len(prompt) - served.num_kept(prompt)
    if num_new - num_open < MIN_TOKENS:
        return None
    return PrecomputeCandidate(
        _with_message(state, _OPENINGS[0]), Reason.NEXT_MESSAGE, 1.0, 1, num_new, num_open=num_open
    )


def ends_with_thought(state: SessionState) -> bool:
    """Whether the turn has ended with an answer, and the model thought in it."""
    messages = [entry.message for entry in state.entries]
    if not messages or role_of(messages[-1]) is not Role.ASSISTANT or tool_calls(messages[-1]):
        return False
    return any(map(_thinks, takewhile(lambda message: message.get("role") != "user", reversed(messages))))


def _thinks(message: Message) -> bool:
    return role_of(message) is Role.ASSISTANT and (
        has_reasoning(message) or any(_END_OF_REASONING in text for _, text in texts(message))
    )


def _with_message(state: SessionState, text: str) -> SessionState:
    entry = TranscriptEntry({"role": "user", "content": text}, Author.CLIENT)
    return replace(state, entries=(*state.entries, entry))
