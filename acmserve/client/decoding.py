"""JSON values as frozen dataclasses, by their annotations.

    {"kept_tokens": 128, ...}  --decode(PromptReceipt, ...)-->  PromptReceipt(kept_tokens=128, ...)

A field that the class does not know is passed over, so that a newer server does no harm. A field that is missing, or
is of another type, raises `UnreadableAnswer` with its path. Nothing is guessed or converted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from acmserve.client.errors import UnreadableAnswer

T = TypeVar("T")


def decode(kind: type[T], value: object, where: str) -> T:
    """The value as a dataclass. Raises `UnreadableAnswer`."""
    if not isinstance(value, Mapping):
        raise UnreadableAnswer(where, f"must be an object, not {_name(value)}")
    found: dict[str, Any] = {}
    known: Any = kind
    for name, (hint, is_needed) in _fields(known).items():
        if name in value:
            found[name] = _read(hint, value[name], f"{where}.{name}")
        elif is_needed:
            raise UnreadableAnswer(f"{where}.{name}", "is missing")
    return kind(**found)


@cache
def _fields(kind: type) -> dict[str, tuple[Any, bool]]:
    hints = get_type_hints(kind)
    return {
        field.name: (hints[field.name], field.default is MISSING and field.default_factory is MISSING)
        for field in fields(kind)
    }


def _read(hint: Any, value: object, where: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, UnionType):
        return _read_union(arguments, value, where)
    if origin is Literal:
        if value not in arguments:
            raise UnreadableAnswer(where, f"is {str(value)[:60]!r}, and none of {', '.join(map(str, arguments))}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise UnreadableAnswer(where, f"must be a list, not {_name(value)}")
        return tuple(_read(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise UnreadableAnswer(where, f"must be an object, not {_name(value)}")
        return {str(name): _read(arguments[1], item, f"{where}.{name}") for name, item in value.items()}
    if is_dataclass(hint):
        return decode(hint, value, where)  # type: ignore[arg-type]
    return _read_plain(hint, value, where)


def _read_union(kinds: tuple[Any, ...], value: object, where: str) -> Any:
    """None, or the one kind beside it. A union of plain types takes the first that fits."""
    if value is None and type(None) in kinds:
        return None
    others = [kind for kind in kinds if kind is not type(None)]
    for kind in others[:-1]:
        if _fits(kind, value):
            return value
    return _read(others[-1], value, where)


def _read_plain(kind: type, value: object, where: str) -> Any:
    if not _fits(kind, value):
        raise UnreadableAnswer(where, f"must be {kind.__name__}, not {_name(value)}")
    return value


def _fits(kind: type, value: object) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float)) if kind is float else isinstance(value, kind)


def _name(value: object) -> str:
    return type(value).__name__
