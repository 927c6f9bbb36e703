"""What an agent did for one query, as text for the Distiller: the messages of the query in order, cut to a size.

    [user] question   [assistant] text, calls   [tool] result ...   [assistant] answer
    long messages lose their middle, a long trajectory loses its own: how it began and how it ended matter most

Pure. It knows messages, neither sessions nor maps.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from acmserve.context.transcript.message import Message, texts
from acmserve.context.transcript.tokenizer import Tokenizer

MAX_MESSAGE_CHARS = 8000
_GAP = "\n... {num} characters left out ...\n"
_HEAD_SHARE = 4


def last_query(messages: Sequence[Message], observations: Collection[int] = ()) -> list[Message]:
    """The messages from the last one of the user on. `observations` are results in the user's name."""
    users = [n for n, message in enumerate(messages) if message.get("role") == "user" and n not in observations]
    return list(messages[users[-1] if users else 0 :])


def trajectory(messages: Sequence[Message]) -> str:
    """The messages as text, long ones without their middle."""
    return "\n\n".join(f"[{message.get('role')}]\n{cut_middle(_said(message))}" for message in messages)


def question_of(messages: Sequence[Message]) -> str:
    """What the user asked in these messages."""
    asked = next((message for message in messages if message.get("role") == "user"), {})
    return cut_middle("\n".join(text for _, text in texts(asked)))


def cut_middle(text: str, max_chars: int = MAX_MESSAGE_CHARS) -> str:
    """The text. A quarter from its start and the rest from its end where it is longer than `max_chars`."""
    num_left = len(text) - max_chars
    if num_left <= 0:
        return text
    head = max_chars // _HEAD_SHARE
    return text[:head] + _GAP.format(num=f"{num_left:,}") + text[len(text) - max_chars + head :]


def fit(text: str, max_tokens: int, tokenizer: Tokenizer) -> str:
    """The text in about `max_tokens` tokens, without its middle where it has more."""
    starts = tokenizer.starts(text)
    if len(starts) <= max_tokens:
        return text
    head = max_tokens // _HEAD_SHARE
    start, end = int(starts[head]), int(starts[len(starts) - max_tokens + head])
    return text[:start] + _GAP.format(num=f"{end - start:,}") + text[end:]


def _said(message: Message) -> str:
    parts = [text for _, text in texts(message)]
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str):
        parts.insert(0, reasoning)
    calls: Any = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            arguments = function.get("arguments")
            written = arguments if isinstance(arguments, str) else json.dumps(arguments, default=str)
            parts.append(f"calls {function.get('name')}({written})")
    return "\n".join(parts)
