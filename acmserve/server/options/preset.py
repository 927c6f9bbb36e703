"""A preset of the tool loop: its prompt in front of the messages of a request. The client's own messages stay."""

from __future__ import annotations

from collections.abc import Sequence

from acmserve.context.tools.suites import PRESETS
from acmserve.context.transcript.message import Message

_INSTRUCTION_ROLES = ("system", "developer")


def with_preset(messages: Sequence[Message], preset: str | None) -> list[Message]:
    """The messages with a preset's prompt behind the client's own instructions, or in a system message in front."""
    if preset is None:
        return list(messages)
    prompt = PRESETS[preset]
    if not messages or messages[0].get("role") not in _INSTRUCTION_ROLES:
        return [{"role": "system", "content": prompt}, *messages]
    content = messages[0].get("content")
    merged = (
        [*content, {"type": "text", "text": prompt}]
        if isinstance(content, list)
        else "\n\n".join(text for text in (content, prompt) if text)
    )
    return [{**messages[0], "content": merged}, *messages[1:]]
