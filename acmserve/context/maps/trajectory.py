"""What an agent did for one query, as text for the Distiller: the messages of the query in order, cut to a size.

    [user] question   [assistant] text, calls   [tool] result ...   [assistant] answer
    long messages lose their middle, a long trajectory loses its own: how it began and how it ended matter most

What waits to be told is kept as copies of messages that are bounded in sum (`keep`). They stay messages, so that a
redaction finds its text in them. A long one keeps a margin beside what is told: a redacted text that crosses the edge
is found there as a whole.

Pure. It knows messages, neither sessions nor maps.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acmserve.context.transcript.message import Message, texts
from acmserve.context.transcript.tokenizer import Tokenizer

MAX_MESSAGE_CHARS = 8000
_GAP = "\n... {num} characters left out ...\n"
_HEAD_SHARE = 4
_BETWEEN = "\n\n"
_TEXT, _REASONING, _CALL = "text", "reasoning", "call"
# Beside what is told of a long message. A redaction finds a text that crosses the edge.
_MARGIN = 2000
# A message has four tokens at least: so small ones count as more, and there are not too many of them.
_MIN_TOLD_CHARS = 32
# What an object costs beside its text.
_NUM_OBJECT_CHARS = 500
_MAX_ROLE_CHARS = 200


@dataclass(frozen=True, slots=True)
class KeptMessage:
    """A copy of a message with nothing but what is told of it. `num_left` characters of its middle are not in it."""

    message: Message
    num_left: int = 0

    @property
    def num_chars(self) -> int:
        """Characters that it holds, its objects included."""
        num_objects = 1 + len(texts(self.message)) + 2 * len(self.message.get("tool_calls", ()))
        return len(_said(self.message)) + num_objects * _NUM_OBJECT_CHARS


@dataclass(frozen=True, slots=True)
class KeptQuery:
    """Messages from both ends of a query. `num_left` characters stood between the first `num_head` and the others."""

    messages: tuple[KeptMessage, ...]
    num_head: int
    num_left: int = 0


def last_query(messages: Sequence[Message], observations: Collection[int] = ()) -> list[Message]:
    """The messages from the last one of the user on. `observations` are results in the user's name."""
    users = [n for n, message in enumerate(messages) if message.get("role") == "user" and n not in observations]
    return list(messages[users[-1] if users else 0 :])


def keep(messages: Sequence[Message], max_chars: int) -> KeptQuery:
    """The messages that about `max_chars` characters tell: a quarter of these from the first on, the rest from the end.

    All of them where they have no more.
    """
    lengths = [len(_told(message, 0)) + len(_BETWEEN) for message in messages]
    head, num_chars = 0, 0
    while head < len(messages) and num_chars < max_chars // _HEAD_SHARE:
        num_chars += max(lengths[head], _MIN_TOLD_CHARS)
        head += 1
    tail, num_chars = len(messages), 0
    while tail > head and num_chars < max_chars - max_chars // _HEAD_SHARE:
        tail -= 1
        num_chars += max(lengths[tail], _MIN_TOLD_CHARS)
    kept = tuple(keep_message(message) for message in (*messages[:head], *messages[tail:]))
    return KeptQuery(kept, head, sum(lengths[head:tail]))


def keep_message(message: Message) -> KeptMessage:
    """The copy of a message. It has no more than `MAX_MESSAGE_CHARS` and two margins."""
    num_said = len(_said(message))
    first = last = num_said
    if num_said > MAX_MESSAGE_CHARS + 2 * _MARGIN:
        first = MAX_MESSAGE_CHARS // _HEAD_SHARE + _MARGIN
        last = num_said - MAX_MESSAGE_CHARS + MAX_MESSAGE_CHARS // _HEAD_SHARE - _MARGIN

    def less(text: str, at: int) -> str:
        """A text that begins at a character of what is said, without what is left out of it."""
        start, end = max(0, first - at), max(0, last - at)
        return text if end <= start else text[:start] + text[end:]

    kept: dict[str, Any] = {"role": str(message.get("role"))[:_MAX_ROLE_CHARS]}
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    at = 0
    for kind, name, text in _pieces(message):
        start, at = at, at + len(_spelled(kind, name, text)) + 1
        if first <= start and at - 1 <= last and first < last:
            continue
        if kind == _CALL:
            begin = start + len(_spelled(kind, name, "")) - 1
            function = {"name": less(name, start + len("calls ")), "arguments": less(text, begin)}
            calls.append({"type": "function", "function": function})
        elif kind == _TEXT:
            parts.append({"type": "text", "text": less(text, start)})
        else:
            kept["reasoning"] = less(text, start)
    if parts:
        kept["content"] = parts[0]["text"] if isinstance(message.get("content"), str) else parts
    if calls:
        kept["tool_calls"] = calls
    return KeptMessage(kept, num_said - len(_said(kept)))


def trajectory(messages: Sequence[KeptMessage]) -> str:
    """The messages as text, long ones without their middle."""
    return _BETWEEN.join(_told(kept.message, kept.num_left) for kept in messages)


def question_of(messages: Sequence[KeptMessage]) -> str:
    """What the user asked in these messages."""
    asked = next((kept for kept in messages if kept.message.get("role") == "user"), KeptMessage({}))
    return cut_middle("\n".join(text for _, text in texts(asked.message)), num_left=asked.num_left)


def cut_middle(text: str, max_chars: int = MAX_MESSAGE_CHARS, num_left: int = 0) -> str:
    """The text. A quarter from its start and the rest from its end where it is longer than `max_chars`.

    `num_left` characters of its middle are gone already.
    """
    if len(text) + num_left <= max_chars:
        return text
    head = max_chars // _HEAD_SHARE
    tail = max(head, len(text) - max_chars + head)
    return text[:head] + _GAP.format(num=f"{num_left + tail - head:,}") + text[tail:]


def tell(query: KeptQuery, max_tokens: int, tokenizer: Tokenizer) -> str:
    """The trajectory of a query in about `max_tokens` tokens, without its middle where it has more."""
    if not query.num_left:
        return fit(trajectory(query.messages), max_tokens, tokenizer)
    head, tail = trajectory(query.messages[: query.num_head]), trajectory(query.messages[query.num_head :])
    num_head = max_tokens // _HEAD_SHARE
    num_tail = max_tokens - num_head
    starts = tokenizer.starts(head)
    end = int(starts[num_head]) if len(starts) > num_head else len(head)
    starts = tokenizer.starts(tail)
    start = int(starts[len(starts) - num_tail]) if len(starts) > num_tail else 0
    return head[:end] + _GAP.format(num=f"{len(head) - end + query.num_left + start:,}") + tail[start:]


def fit(text: str, max_tokens: int, tokenizer: Tokenizer) -> str:
    """The text in about `max_tokens` tokens, without its middle where it has more."""
    starts = tokenizer.starts(text)
    if len(starts) <= max_tokens:
        return text
    head = max_tokens // _HEAD_SHARE
    start, end = int(starts[head]), int(starts[len(starts) - max_tokens + head])
    return text[:start] + _GAP.format(num=f"{end - start:,}") + text[end:]


def _told(message: Message, num_left: int) -> str:
    return f"[{str(message.get('role'))[:_MAX_ROLE_CHARS]}]\n{cut_middle(_said(message), num_left=num_left)}"


def _said(message: Message) -> str:
    return "\n".join(_spelled(*piece) for piece in _pieces(message))


def _spelled(kind: str, name: str, text: str) -> str:
    return f"calls {name}({text})" if kind == _CALL else text


def _pieces(message: Message) -> list[tuple[str, str, str]]:
    """What a message says, in order: the kind of each piece, the name of the tool that it calls, and its text."""
    pieces = [(_TEXT, "", text) for _, text in texts(message)]
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str):
        pieces.insert(0, (_REASONING, "", reasoning))
    calls: Any = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            arguments = function.get("arguments")
            written = arguments if isinstance(arguments, str) else json.dumps(arguments, default=str)
            pieces.append((_CALL, str(function.get("name")), written))
    return pieces
