"""What the served model's chat template writes around messages, measured once at the start by rendering small chats.

    user x                            n1
    user x, assistant x, user x       n2      a message is (n2 - n1) / 2 without its own text
    ... assistant x + call, user x    n3      a call is n3 - n2 without name and arguments
    ... + call, result x, user x      n4      a result is n4 - n3 without its text

A template that refuses these chats (some know no tools) leaves the defaults; the account of a session calibrates itself
with every prompt that is served.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from acmserve.context.account import Overheads

Count = Callable[[list[dict[str, Any]]], int]
_TEXT = "Harbour."
_CALL = {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": {}}}


def probe_template(render: Count, count: Callable[[str], int]) -> tuple[Overheads, int]:
    """The overheads, and the tokens of a prompt besides messages and tools. `render` counts a rendered chat."""
    user, result = {"role": "user", "content": _TEXT}, {"role": "tool", "content": _TEXT, "tool_call_id": "call00001"}
    said = {"role": "assistant", "content": _TEXT}
    called = said | {"tool_calls": [_CALL]}
    num_text, num_call = count(_TEXT), count("look") + count("{}")
    n1, n2 = render([user]), render([user, said, user])
    message = max(0, (n2 - n1) // 2 - num_text)
    num_base = max(0, n1 - num_text - message)
    n3 = render([user, called, user])
    n4 = render([user, called, result, user])
    return Overheads(message, max(0, n3 - n2 - num_call), max(0, n4 - n3 - num_text)), num_base
