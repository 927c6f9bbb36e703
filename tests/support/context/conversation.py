"""What the tests of this folder share: two tokenizers, and the shortest way to a conversation and to a tool call."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from acmserve.context.session.render import render
from acmserve.context.session.history import adopt
from acmserve.context.session.state import SessionState
from acmserve.context.tools.run import ToolCall, ToolContext, ToolOutcome, run_tool
from acmserve.context.transcript.message import Message

KEY = bytes(range(16))


class Words:
    """A token is a word or a sign, with the white space before it. Every character belongs to one token."""

    _TOKEN = re.compile(r"\s*(?:\w+|[^\w\s])|\s+")

    def starts(self, text: str) -> Sequence[int]:
        return [match.start() for match in self._TOKEN.finditer(text)]


class Characters:
    """A token is a character: counts add up exactly, whatever is cut or joined."""

    def starts(self, text: str) -> Sequence[int]:
        return range(len(text))


WORDS = Words()


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def state_of(*messages: Message) -> SessionState:
    return adopt(SessionState(digest_key=KEY), messages).state


def lines(count: int, words: int = 10, name: str = "line") -> str:
    """`count` lines of `words` tokens, every line with a number of its own."""
    return "".join(f"{name} {i} " + "word " * (words - 3) + "end\n" for i in range(count))


def bench(suite: str = "sculptor", fidelity: str = "exact", supplied: Any = None) -> ToolContext:
    return ToolContext(WORDS, suite, fidelity, supplied)


def call(
    state: SessionState,
    name: str,
    *,
    suite: str = "sculptor",
    fidelity: str = "exact",
    supplied: Any = None,
    **arguments: Any,
) -> ToolOutcome:
    """One tool call, which may fail."""
    return run_tool(state, ToolCall(name, arguments), bench(suite, fidelity, supplied))


def done(outcome: ToolOutcome) -> SessionState:
    """The state after a call that went well."""
    assert outcome.error is None, outcome.result
    assert outcome.needs is None
    outcome.state.check_integrity()
    return outcome.state


def refusal(state: SessionState, outcome: ToolOutcome) -> str:
    """The result of a call that was refused and changed nothing."""
    assert outcome.error is not None, outcome.result
    assert outcome.state is state
    assert not outcome.changed
    assert outcome.fragment_ids == ()
    assert outcome.result == f"Error: {outcome.error}"
    return outcome.result


def cut(state: SessionState, start: str, end: str, num: int = 1, role: str = "user") -> tuple[SessionState, list[str]]:
    """The state with new fragments, and their ids."""
    outcome = call(state, "fragment_context", start_marker=start, end_marker=end, num_fragments=num, role=role)
    return done(outcome), list(outcome.fragment_ids)


def contents(state: SessionState) -> list[Any]:
    """What the model reads."""
    return [message.get("content") for message in render(state)]


def as_bytes(messages: Sequence[Message]) -> bytes:
    return json.dumps(messages, sort_keys=True).encode()
