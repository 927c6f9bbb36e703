"""JSON values that every answer can carry: what may come in, and what goes out where something else got in.

Python's parser accepts what no answer could carry afterwards: `NaN`, numbers that overflow to infinity, halves of
surrogate pairs, nesting that exhausts the stack of whoever walks the value next. `check_json` refuses all of it with
the path of the value. The messages of a chat request are parsed by vLLM, and fields that neither of us reads may still
hold such values; `clean_json` shows them as JSON can. It knows neither HTTP nor messages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from acmserve.errors import InvalidRequest
from acmserve.plan.request import short_ascii

MAX_DEPTH = 64


def check_json(value: object, *path: str | int) -> None:
    """Raise `InvalidRequest` where a parsed value is too deep, not a finite number, or not valid Unicode text."""
    if isinstance(value, str):
        _check_text(value, path)
    elif isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest(dotted(path), f"is {value}, which JSON does not have.", "Send a finite number.")
    elif isinstance(value, dict | list) and len(path) == MAX_DEPTH:
        raise too_deep(path)
    elif isinstance(value, dict):
        for key, below in value.items():
            _check_text(key, path)
            check_json(below, *path, key)
    elif isinstance(value, list):
        for index, below in enumerate(value):
            if type(below) is not int:
                check_json(below, *path, index)


def dotted(path: Sequence[str | int]) -> str:
    """A path as error bodies write it: `messages[2].content`; `body` for the empty one."""
    steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in path]
    return short_ascii("".join(steps).removeprefix(".")) or "body"


def clean_json(value: Any, depth: int = 0) -> Any:
    """A copy of a parsed value that JSON can say: U+FFFD for half a pair, null for NaN, the too deep cut off."""
    if isinstance(value, str):
        return _clean_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if not isinstance(value, dict | list):
        return value
    if depth == MAX_DEPTH:
        return "..."
    if isinstance(value, list):
        return [clean_json(below, depth + 1) for below in value]
    return {_clean_text(key): clean_json(below, depth + 1) for key, below in value.items()}


def _clean_text(text: str) -> str:
    """The text with halves of surrogate pairs replaced; nearly always the very object."""
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def too_deep(path: Sequence[str | int] = ()) -> InvalidRequest:
    """The refusal of a value nested deeper than `MAX_DEPTH`."""
    return InvalidRequest(
        dotted(path), f"is nested deeper than {MAX_DEPTH} levels.", "Send the inner part as JSON text."
    )


def _check_text(text: str, path: Sequence[str | int]) -> None:
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            dotted(path),
            f"is not valid Unicode text: half of a surrogate pair at character {error.start}.",
            "Send characters beyond U+FFFF as both halves, or as UTF-8.",
        ) from None
