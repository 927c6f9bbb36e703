"""Puts the instructions of a converted conversation where the served chat template lets them stand.

    system A | system B | user C | assistant D | system X | user E                   as the routes convert it
    system A, B | user C | assistant D | system X | user E                           the template keeps X in place
    system A, B | user C | assistant D | user <system-reminder>X</..>, E             it does not

Nothing is moved to the front. An instruction that comes late in a conversation would change the prompt at its very
beginning there, and the whole conversation would be computed again. The place depends on the messages around alone, so
every later turn gives the same bytes.

Decision: where the template takes no late instruction it is said by the user, with a mark. It joins a message of the
user beside it, since many templates refuse two messages of the user in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from acmserve.context.transcript.message import Message, texts
from acmserve.server.models.message_roles import MessageRoles

_ROLES = ("system", "developer")
_MARK = "<system-reminder>\n{text}\n</system-reminder>"


def place_instructions(messages: Sequence[Message], roles: MessageRoles, *, begins: bool = True) -> list[Message]:
    """The messages as the template takes them. A result stays right behind its call.

    `begins`: the conversation begins with them, so that its first instructions lead it.
    """
    num_leading = next((i for i, message in enumerate(messages) if message.get("role") not in _ROLES), len(messages))
    num_leading = num_leading if begins else 0
    placed = _leading(messages[:num_leading], roles)
    pending: list[str] = []
    for message in messages[num_leading:]:
        role = message.get("role")
        if role in _ROLES and not roles.inline_system and not (role == "developer" and roles.developer):
            pending.append(_MARK.format(text=_text_of(message)))
            continue
        if pending and placed and placed[-1].get("role") == "user":
            placed[-1] = _joined(placed[-1], pending, behind=True)
            pending = []
        if role == "developer" and roles.developer:
            placed.append(message)
        elif role in _ROLES:
            placed.append({**message, "role": "system"})
        elif pending and role == "user":
            placed.append(_joined(message, pending, behind=False))
            pending = []
        else:
            if pending and role != "tool":
                placed.append({"role": "user", "content": "\n\n".join(pending)})
                pending = []
            placed.append(message)
    if pending and placed and placed[-1].get("role") == "user":
        return [*placed[:-1], _joined(placed[-1], pending, behind=True)]
    return [*placed, {"role": "user", "content": "\n\n".join(pending)}] if pending else placed


def _leading(messages: Sequence[Message], roles: MessageRoles) -> list[Message]:
    """What stands in front of the conversation: one system message, and what the template has a role for."""
    own = [message for message in messages if message.get("role") == "developer" and roles.developer]
    rest = [message for message in messages if message.get("role") != "developer" or not roles.developer]
    if len(rest) < 2:
        return [*({**message, "role": "system"} for message in rest), *own]
    return [{"role": "system", "content": "\n\n".join(_text_of(message) for message in rest)}, *own]


def _text_of(message: Message) -> str:
    return "\n".join(text for _, text in texts(message))


def _joined(message: Message, added: Sequence[str], *, behind: bool) -> dict[str, Any]:
    """A message of the user with more texts."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [{"type": "text", "text": text} for text in added]
        return {**message, "content": [*content, *parts] if behind else [*parts, *content]}
    own = [content] if content else []
    return {**message, "content": "\n\n".join([*own, *added] if behind else [*added, *own])}
