"""A conversation with tools as plain messages, system, user and assistant in turn, and its tokens.

    system                       system, and the tools as text
    user                         user
    assistant, tool_calls        assistant: its words, and the calls in the words of hermes
    tool, tool, user             user: <tool_response> ... </tool_response>, twice, and what the user says

Servers and their chat templates treat tools in ways of their own. Plain text is treated alike by all. So every server
gets the same prompts, and one that serves the same model counts the same tokens. Neighbours of one role are joined,
because some templates refuse them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from acmserve.context.transcript.message import Message, texts

Plain = dict[str, str]
_HEAD = (
    "# Tools\n\nYou may call these functions, each by its name and arguments as a JSON object between <tool_call> and "
    "</tool_call>:\n"
)


def as_plain(message: Message) -> Plain:
    """One message without tools."""
    said = "\n".join(text for _, text in texts(message))
    role = str(message["role"])
    if role == "assistant":
        return {
            "role": role,
            "content": "\n".join([*([said] if said else []), *map(_call, message.get("tool_calls") or ())]),
        }
    if role in ("tool", "function"):
        return {"role": "user", "content": f"<tool_response>\n{said}\n</tool_response>"}
    return {"role": "system" if role in ("system", "developer") else "user", "content": said}


def _call(call: Mapping[str, Any]) -> str:
    function = call["function"]
    arguments = function.get("arguments")
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return f'<tool_call>\n{{"name": {json.dumps(function["name"])}, "arguments": {written}}}\n</tool_call>'


def joined(messages: Iterable[Plain]) -> list[Plain]:
    """Neighbours of one role as one message."""
    found: list[Plain] = []
    for message in messages:
        if found and found[-1]["role"] == message["role"]:
            found[-1] = {**message, "content": f"{found[-1]['content']}\n{message['content']}"}
        else:
            found.append(message)
    return found


def tools_text(tools: Sequence[Mapping[str, Any]]) -> str:
    """What the system message says of the tools. "" without any."""
    return "" if not tools else "\n\n" + _HEAD + "\n".join(json.dumps(tool) for tool in tools)


class PromptWriter:
    """Writes prompts and counts their tokens as a server of this model does. `tokenizer` is that of transformers.

    A prompt begins with a tag, eight digits that a replay chooses: replays with different tags share no KV anywhere.
    """

    NO_TAG = "0" * 8

    def __init__(self, tokenizer: Any, template: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._template = template

    def write(self, messages: Iterable[Plain], tools: Sequence[Mapping[str, Any]]) -> list[Plain]:
        """The messages to send, joined. The first is a system message with the tag's place and the tools."""
        plain = joined(messages)
        head = plain.pop(0)["content"] if plain and plain[0]["role"] == "system" else ""
        return [{"role": "system", "content": f"Session {self.NO_TAG}. {head}{tools_text(tools)}"}, *plain]

    def tokens(self, messages: Sequence[Plain]) -> tuple[int, ...]:
        """Token ids of a prompt."""
        written = self._tokenizer.apply_chat_template(
            list(messages), chat_template=self._template, add_generation_prompt=True, tokenize=False
        )
        return tuple(self._tokenizer(written, add_special_tokens=False, verbose=False).input_ids)


def tagged(messages: Sequence[Plain], tag: str) -> list[Plain]:
    """The messages under a tag of eight digits."""
    head = messages[0]["content"].replace(PromptWriter.NO_TAG, tag, 1)
    return [{**messages[0], "content": head}, *messages[1:]]
