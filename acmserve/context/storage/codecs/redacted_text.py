"""What is kept of a redacted text as a JSON value and back, for the archive of sessions.

["f9e375", "user", 40, 132, "base64 of 16 bytes for each block"]
"""

from __future__ import annotations

import base64
from typing import Any

from acmserve.context.alignment.redacted_text import RedactedText
from acmserve.validation import check_number


def redacted_value(text: RedactedText) -> list[Any]:
    """A redacted text as a JSON array."""
    blocks = base64.b64encode(text.blocks).decode("ascii")
    return [text.fragment_id, text.role, text.num_tokens, text.num_chars, blocks]


def redacted_from(value: Any) -> RedactedText:
    """The text that `redacted_value` made a value of. Raises `TypeError` or `ValueError` for any other value."""
    if not isinstance(value, list):
        raise TypeError(f"a redacted text is {type(value).__name__}, not list")
    fragment_id, role, num_tokens, num_chars, blocks = value
    if [type(item) for item in value] != [str, str, int, int, str]:
        raise TypeError(f"a redacted text has {value[:4]!a}")
    check_number(num_tokens, "num_tokens of a redacted text")
    text = RedactedText(fragment_id, role, num_tokens, num_chars, base64.b64decode(blocks, validate=True))
    text.check()
    return text
