"""The normal form of a message, and its digest: the identity of what a client keeps of it.

    {"role": "assistant", "content": [{"type": "text", "text": "It is 7. ", "cache_control": {..}}], "tool_calls": null}
    {"role": "assistant", "content": "It is 7.", "reasoning_content": "Hm."}        the same message: ["It is 7."]

Clients resend their history in other words. These do not count:

- A content may be a string or a list of text parts, with `cache_control` or anything else beside a text.
- White space does not count. Clients strip it, and put it between parts that they join.
- Neither do fields that are null or empty, nor those of which the protocol knows nothing.
- Reasoning does not count: a field, a part, or `<think>` at the start of an answer.
- A client may rename the ids of calls and results, and spell JSON arguments anew.

Decision: texts count without any white space. Two messages that differ in nothing else are one entry, and the model
reads the client's. The digest is keyed with the session's own key. A redacted text is kept as a digest only, and nobody
may guess it from a table.

It knows neither sessions nor tokens.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from acmserve.context.transcript.message import Message
from acmserve.context.transcript.parts import is_reasoning_part
from acmserve.errors import InvalidRequest

_VERSION = b"\x02"
_NUM_BYTES = 16
_ROLES = {"developer": "system"}
_SURROGATE = re.compile("[\ud800-\udfff]")
_THINK, _THOUGHT = "<think>", "</think>"


def digest_normal_form(message: Message, key: bytes) -> bytes:
    """The identity of a message: one byte for the version of the form, and 16 of a digest.

    `key` (1 to 64 bytes) is the session's. Arguments of a call may spell half of a surrogate pair, as `\\ud800`. Raises
    what `json` raises for a message that cannot be written down: TypeError, ValueError, RecursionError.
    """
    return _digest(_canonical(message), key)


def digest_sent(index: int, message: object, key: bytes) -> bytes:
    """The identity of a client's message. Raises `InvalidRequest` naming one that is no JSON object or no UTF-8."""
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"messages[{index}]", f"must be an object, not {type(message).__name__}.")
    try:
        canonical = _canonical(message)
        if _SURROGATE.search(canonical):  # of arguments, or of a text, which is refused
            json.dumps(message, ensure_ascii=False).encode()
        return _digest(canonical, key)
    except UnicodeEncodeError:
        reason = "has half of a surrogate pair, which is no character."
    except RecursionError:
        reason = "is nested too deeply."
    except (TypeError, ValueError) as error:
        reason = f"is not JSON: {error}."
    raise InvalidRequest(f"messages[{index}]", reason)


def _canonical(message: Message) -> str:
    return json.dumps(normal_form(message), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _digest(canonical: str, key: bytes) -> bytes:
    written = canonical.encode("utf-8", "surrogatepass")
    return _VERSION + hashlib.blake2b(written, key=key, digest_size=_NUM_BYTES).digest()


def normal_form(message: Message) -> dict[str, Any]:
    """What counts of a message, as JSON. Fields that say nothing are missing."""
    role = message.get("role")
    form: dict[str, Any] = {
        "role": _ROLES.get(role, role) if isinstance(role, str) else role,
        "name": message.get("name"),
        "content": _content(message.get("content"), may_think=role == "assistant"),
        "calls": call_forms(message),
        "answers": bool(message.get("tool_call_id")) and role != "tool",
    }
    if message.get("function_call"):
        form["function_call"] = _call(message["function_call"])
    return {name: value for name, value in form.items() if value}


def call_forms(message: Message) -> list[Any]:
    """The tool calls of a message: name and arguments of each, without its id."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list | tuple):
        return [calls] if calls else []
    return [_call(call.get("function", call) if isinstance(call, Mapping) else call) for call in calls]


def core(text: str) -> str:
    """A text without its white space."""
    return "".join(text.split())


def _content(content: object, may_think: bool) -> object:
    """The texts and other parts of a content in order, neighbouring texts joined."""
    if isinstance(content, str):
        text = core(_without_think(content) if may_think else content)
        return [text] if text else []
    if not isinstance(content, list):
        return content
    blocks: list[Any] = []
    for part in content:
        if is_reasoning_part(part):
            continue
        said = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(said, str):
            blocks += _other_part(part)
            continue
        bare = core(_without_think(said) if may_think and not blocks else said)
        if bare and blocks and isinstance(blocks[-1], str):
            blocks[-1] += bare
        elif bare:
            blocks.append(bare)
    return blocks


def _other_part(part: object) -> list[object]:
    """A part that is no text: an image, a file. A text part without a text is nothing."""
    if not isinstance(part, Mapping):
        return [[part]]
    if part.get("type") == "text":
        return []
    return [{name: value for name, value in part.items() if name != "cache_control" and value not in (None, "", [])}]


def _without_think(text: str) -> str:
    """An answer without the reasoning that some servers leave at its start."""
    if not text.lstrip().startswith(_THINK):
        return text
    _, found, said = text.partition(_THOUGHT)
    return said if found else text


def _call(function: object) -> object:
    if not isinstance(function, Mapping):
        return function
    arguments = function.get("arguments")
    with contextlib.suppress(ValueError, RecursionError):
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    return [function.get("name"), arguments or {}]
