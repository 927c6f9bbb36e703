"""What every rendered conversation must be, and its weight, written down independently of the code."""

from __future__ import annotations

from acmserve.context.transcript.message import Message
from tests.support.context.annotated import token_counts_of


def weigh(messages: list[Message]) -> int:
    """Tokens of messages that are shown as they are."""
    return token_counts_of(messages).num_tokens


def orphans(messages: list[Message]) -> list[str]:
    """Results whose call is not among the messages before them, and calls that no result answers."""
    waiting: set[str] = set()
    found = []
    for message in messages:
        for call in message.get("tool_calls") or ():
            waiting.add(call["id"])
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                found.append(f"result {message['tool_call_id']}")
            waiting.discard(message["tool_call_id"])
    return [*found, *(f"call {name}" for name in sorted(waiting))]


def check_valid(before: list[Message], after: list[Message]) -> None:
    """No new orphan, no empty message that was none, users and system byte for byte, order kept."""
    assert set(orphans(after)) <= set(orphans(before))
    for role in ("user", "system"):
        mine = [message for message in before if message["role"] == role]
        assert all(a is b for a, b in zip(mine, (m for m in after if m["role"] == role), strict=True))
    known = {id(message) for message in before}
    for message in after:
        if message["role"] == "assistant" and id(message) not in known:
            assert message.get("tool_calls") or str(message["content"]).strip()
            assert message.get("tool_calls") != []
    positions = {id(message): index for index, message in enumerate(before)}
    kept = [positions[id(message)] for message in after if id(message) in positions]
    assert kept == sorted(kept)
