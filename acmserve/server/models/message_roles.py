"""Where the served chat template lets instructions stand, found out at the start by rendering a small chat.

    system A | user B | assistant C | system X | user D    -->   .. C .. X .. D ..     X stays in place
                                                                 X A .. or an error    X cannot be sent like that

A template is a program, and may raise, drop a message or move it. So the text of the prompt is looked at, and not the
template.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from acmserve.server.vllm.handlers import load_chat_template

Write = Callable[[list[dict[str, Any]]], str]
_WORDS = ("Anchorage.", "Bergen.", "Cadiz.", "Dakar.")
_INLINE = "Esbjerg."

logger = logging.getLogger(f"vllm.{__name__}")


@dataclass(frozen=True, slots=True)
class MessageRoles:
    """`inline_system`: a system message stays where it stands. `developer`: the template knows that role."""

    inline_system: bool = False
    developer: bool = False


def probe_roles(write: Write, template: str) -> MessageRoles:
    """Ask a template. `write` renders a chat as text. vLLM looks for the word `developer` in the template itself."""
    names_developer = '"developer"' in template or "'developer'" in template
    return MessageRoles(_stays(write, "system"), names_developer and _stays(write, "developer"))


def open_roles(tokenizer: Any, chat_template: str | None) -> MessageRoles:
    """Ask the served template. `tokenizer` is vLLM's, `chat_template` what `--chat-template` names."""

    def write(messages: list[dict[str, Any]]) -> str:
        template = load_chat_template(chat_template)
        return str(tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False))

    return probe_roles(write, str(load_chat_template(chat_template) or getattr(tokenizer, "chat_template", "")))


def _stays(write: Write, role: str) -> bool:
    roles = ("system", "user", "assistant", "user")
    chat = [{"role": name, "content": word} for name, word in zip(roles, _WORDS, strict=True)]
    chat.insert(3, {"role": role, "content": _INLINE})
    try:
        text = write(chat)
    except (TemplateError, ValueError, TypeError, LookupError, AttributeError, NotImplementedError) as error:
        # What templates raise, which are programs.
        logger.info("acmserve: the chat template takes no %s message inside a conversation (%s)", role, error)
        return False
    places = [text.find(word) for word in (*_WORDS[:3], _INLINE, _WORDS[3])]
    return text.count(_INLINE) == 1 and -1 not in places and places == sorted(places)
