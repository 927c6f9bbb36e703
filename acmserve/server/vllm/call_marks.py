"""How a tool call begins in the text of the served model, as vLLM's parser of tool calls knows it.

vLLM hands a call that it cannot read to the client as text. With these marks such a text is told from an answer. Some
parsers know no mark (those of Python or of bare JSON): no call of theirs is recognised.
"""

from __future__ import annotations

import logging
from typing import Any

_NAMES = ("tool_calls_start_token", "tool_call_start_token", "bot_token")

logger = logging.getLogger(f"vllm.{__name__}")


def call_marks(serving: Any, tokenizer: Any) -> tuple[str, ...]:
    """The marks of the parser of vLLM's chat handler (`OpenAIServingChat`). () without a parser."""
    parser = getattr(getattr(serving, "parser_cls", None), "tool_parser_cls", None)
    if parser is None:
        return ()
    try:
        made = parser(tokenizer)
    except (RuntimeError, TypeError, ValueError) as error:
        logger.warning("acmserve: malformed tool calls are not recognised, the parser cannot be made: %s", error)
        return ()
    found = (getattr(made, name, None) for name in _NAMES)
    return tuple(dict.fromkeys(mark for mark in found if isinstance(mark, str) and mark))
