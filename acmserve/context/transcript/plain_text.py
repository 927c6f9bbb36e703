"""A conversation as a text that a model can read and summarize: who says what, calls and results, in order.

Reasoning is left out, as most templates leave it out, and images are named only. Pure. The same messages give the same
text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from acmserve.context.transcript.message import Message
from acmserve.context.transcript.outline import Outline
from acmserve.context.transcript.parts import Parts, Role, read_parts


def write_out(messages: Sequence[Message]) -> str:
    """The text of messages in OpenAI's form."""
    read = read_parts(messages)
    outline = Outline()
    outline.extend(read)
    paragraphs: list[str] = []
    for message, parts, line in zip(messages, read, outline.lines, strict=True):
        who = str(message.get("role"))
        if line.role is Role.RESULT:
            name = "" if line.use is None else outline.lines[line.use.entry].names[line.use.number]
            who = f"result of {name or 'a tool'}"
        paragraphs.extend(f"{who}: {part}" for part in _said(message, parts))
        paragraphs.extend(f"{who} calls {call.name}: {_written(call.arguments)}" for call in parts.calls)
    return "\n\n".join(paragraphs)


def _said(message: Message, parts: Parts) -> Iterator[str]:
    said = "\n".join(parts.texts).strip()
    if said:
        yield said
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") in ("image", "image_url"):
            yield "[an image]"


def _written(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
