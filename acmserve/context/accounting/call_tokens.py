"""What a call of a context tool puts into the prompt itself: the call and its result, as the template writes them.

    before   [ conversation ............... ]
    after    [ conversation, edited ... ][ call ][ result ]        what is told of an edit is the difference

A fold of a short text may cost more than it hides, which nobody sees who counts the text and its marker only. The
served template is asked where there is one. Else the texts are counted, with a guess of what is written around them.
It knows no edit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from acmserve.context.accounting.rendered_spans import PromptRenderer
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.tokenizer import Tokenizer, count_tokens

NUM_AROUND = 28
"""Tokens that templates write around a call and its result, about."""
_CALL_ID = "call_0123456789"


def call_messages(name: str, arguments: object, result: str) -> list[Message]:
    """A call and its result as they come to stand in the conversation."""
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    function = {"name": name, "arguments": written or "{}"}
    call = {"id": _CALL_ID, "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": _CALL_ID, "content": result},
    ]


def num_added(
    before: Sequence[Message], after: Sequence[Message], written: Sequence[Message], renderer: PromptRenderer | None
) -> int | None:
    """Tokens by which the prompt grows from `before` to `after` with what was written behind it. None: nobody knows."""
    if renderer is None:
        return None
    num_before, num_after = renderer.num_tokens(before), renderer.num_tokens([*after, *written])
    return None if num_before is None or num_after is None else num_after - num_before


def num_call_tokens(name: str, arguments: object, result: str, tokenizer: Tokenizer) -> int:
    """About what a call and its result are in a prompt, where no template can be asked."""
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return NUM_AROUND + sum(count_tokens(tokenizer, text) for text in (name, written, result))
