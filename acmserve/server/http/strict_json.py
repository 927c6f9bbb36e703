"""Bodies and values as strict JSON: bounded on the way in, and as JSON can say them on the way out.

    bytes --limit--> body --parse--> value --check--> depth, numbers, text      each with its own refusal

Python's parser accepts what no answer could carry afterwards: `NaN`, numbers that overflow to infinity, and halves of
surrogate pairs. It also accepts nesting that exhausts the stack of whoever walks the value next. `check_json` refuses
all of that with the path of the value. The messages of a chat request are parsed by vLLM, and fields that nobody here
reads may still hold such values. `clean_json` shows them as JSON can. It knows neither routes nor sessions.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, Sequence
from itertools import chain
from typing import Any

from starlette.requests import Request

from acmserve.errors import InvalidRequest
from acmserve.validation import MAX_JSON_DEPTH, short_ascii

MAX_BODY_BYTES = 64 * 2**20
MAX_NAMED_BYTES = 2**20
"""Longest body in which the path of a wrong value is looked for. That walk takes ten times as long as the parser."""
STRICT = f"it is nested deeper than {MAX_JSON_DEPTH} levels, or has a number or a text that JSON cannot say"


class BodyTooLarge(InvalidRequest):
    """More than `MAX_BODY_BYTES`: HTTP 413."""


class NotJson(InvalidRequest):
    """The body says that it is something else than JSON: HTTP 415."""


class StrictRequest(Request):
    """A request whose body is bounded and whose JSON is strict. `body()` and `json()` raise `InvalidRequest`."""

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The chunks of the body. Raises `BodyTooLarge` before the limit is passed."""
        check_size(self.declared_bytes)
        num_bytes = 0
        async for chunk in super().stream():
            num_bytes += len(chunk)
            check_size(num_bytes)
            yield chunk

    @property
    def declared_bytes(self) -> int:
        """How long the body is said to be, 0 where nothing is said."""
        declared = self.headers.get("content-length", "")
        return int(declared) if declared.isascii() and declared.isdigit() else 0

    async def json(self) -> Any:
        """The value of the body, parsed once."""
        if not hasattr(self, "_json"):
            self._json = parse_json(await self.body())
        return self._json

    def check_media_type(self) -> None:
        """Raise `NotJson` unless the body is declared as JSON."""
        given = self.headers.get("content-type", "")
        kind, _, subtype = given.partition(";")[0].strip().lower().partition("/")
        if kind != "application" or not (subtype == "json" or subtype.endswith("+json")):
            raise NotJson(
                "Content-Type", f"is {given[:60]!a}; this route reads JSON.", "Send 'Content-Type: application/json'."
            )


def parse_json(body: bytes) -> Any:
    """The value that a body says. Raises `InvalidRequest`, for a short body with the path of what is wrong with it."""
    try:
        value = json.loads(body)
    except RecursionError:
        raise too_deep() from None
    except ValueError as error:
        raise InvalidRequest("body", f"is not valid JSON: {error}.", "Send one JSON object in UTF-8.") from None
    if not is_strict(value):
        if len(body) > MAX_NAMED_BYTES:
            raise InvalidRequest("body", f"is no strict JSON: {STRICT}.", "Send a shorter body to learn where.")
        check_json(value)
    return value


def is_strict(value: object) -> bool:
    """Whether `check_json` passes a parsed value. Level by level, so that the interpreter walks no single element.

    level 0   [ the value ]
    level 1   [ its elements .... ]      all texts of a level are encoded together
    level 2   [ theirs .......... ]      a level that has containers lies below `MAX_JSON_DEPTH`
    """
    level: list[Any] = [value]
    for _ in range(MAX_JSON_DEPTH + 1):
        dicts, lists, texts, floats = _sorted_by_kind(level)
        if not is_text("".join(chain(texts, chain.from_iterable(dicts)))) or not all(map(math.isfinite, floats)):
            return False
        if not dicts and not lists:
            return True
        level = list(chain(chain.from_iterable(map(dict.values, dicts)), chain.from_iterable(lists)))
    return False


def _sorted_by_kind(level: list[Any]) -> tuple[list[dict[str, Any]], list[list[Any]], list[str], list[float]]:
    """The dicts, lists, texts and floats of a level. Most levels hold one kind, and are looked at once."""
    kinds = set(map(type, level))
    if len(kinds) == 1:
        return tuple(level if kind in kinds else [] for kind in (dict, list, str, float))  # type: ignore[return-value]
    return tuple(  # type: ignore[return-value]
        [each for each in level if each.__class__ is kind] if kind in kinds else [] for kind in (dict, list, str, float)
    )


def is_text(text: str) -> bool:
    """Whether a text is valid Unicode: halves of surrogate pairs stay halves beside each other."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def check_size(num_bytes: int) -> None:
    """Raise `BodyTooLarge` for a body of so many bytes, or of more."""
    if num_bytes > MAX_BODY_BYTES:
        raise BodyTooLarge(
            "body",
            f"has {num_bytes:,} bytes or more; at most {MAX_BODY_BYTES:,} are allowed.",
            "Send a shorter history, or large contents as a reference.",
        )


def check_json(value: object, *path: str | int) -> None:
    """Raise `InvalidRequest` where a parsed value is too deep, not a finite number, or not valid Unicode text."""
    if isinstance(value, str):
        _check_text(value, path)
    elif isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest(dotted(path), f"is {value}, which JSON does not have.", "Send a finite number.")
    elif isinstance(value, dict | list) and len(path) == MAX_JSON_DEPTH:
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
    """A path as error bodies write it: `messages[2].content`. `body` for the empty one."""
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
    if depth == MAX_JSON_DEPTH:
        return "..."
    if isinstance(value, list):
        return [clean_json(below, depth + 1) for below in value]
    return {_clean_text(key): clean_json(below, depth + 1) for key, below in value.items()}


def _clean_text(text: str) -> str:
    """The text with halves of surrogate pairs replaced. Nearly always the very object."""
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def too_deep(path: Sequence[str | int] = ()) -> InvalidRequest:
    """The refusal of a value nested deeper than `MAX_JSON_DEPTH`."""
    return InvalidRequest(
        dotted(path), f"is nested deeper than {MAX_JSON_DEPTH} levels.", "Send the inner part as JSON text."
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
