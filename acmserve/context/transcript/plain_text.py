"""A conversation as a text that a model can read and summarize: who says what, calls and results, in order.

Reasoning is left out, as most templates leave it out, and images are named only. Pure; the same messages give the same
text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from acmserve.context.transcript.message import Message, texts
from acmserve.context.transcript.outline import Outline, Role, call_arguments, call_name, tool_calls
from acmserve.context.transcript.reasoning import without_reasoning


def write_out(messages: Sequence[Message]) -> str:
    """The text of messages in OpenAI's form."""
    outline = Outline(messages)
    paragraphs: list[str] = []
    for entry, message in enumerate(messages):
        line = outline.lines[entry]
        who = str(message.get("role"))
        if line.role is Role.RESULT:
            who = f"result of {(outline.name(line.use) if line.use is not None else '') or 'a tool'}"
        paragraphs.extend(f"{who}: {part}" for part in _parts(message))
        paragraphs.extend(
            f"{who} calls {call_name(call)}: {_written(call_arguments(call))}" for call in tool_calls(message)
        )
    return "\n\n".join(paragraphs)


def _parts(message: Message) -> Iterator[str]:
    said = "\n".join(text for _, text in texts(without_reasoning(message))).strip()
    if said:
        yield said
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") in ("image", "image_url"):
            yield "[an image]"


def _written(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
