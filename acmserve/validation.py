"""Checks of values that somebody sent, and those values as error texts show them. Every layer may use them.

A check returns the value, or raises `InvalidRequest` for the dotted path of the field. No value is repaired.

    value                echo                echo_json
    "fold"               'fold'              'fold'
    None, True           None, True          null, true
    {"a": 1}, [1]        {'a': 1}, [1]       an object, an array

Decision: there are two echoes. `echo` shows the value as Python writes it, cut short, for people who wrote a program.
`echo_json` names the kind of a nested value, for models and people who wrote JSON.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping
from math import isfinite
from typing import Any

from acmserve.errors import InvalidRequest

MAX_ECHO_CHARS = 60
MAX_INTEGER_BITS = 64
MAX_JSON_DEPTH = 64
"""Levels of objects and arrays in a value that is walked. Deeper ones exhaust the stack of whoever walks next."""
_NEAR = 0.82
"""`session` is as near to `session_id`, `version_id` is not."""


def check_object(value: object, field: str, known: Collection[str]) -> Mapping[str, Any]:
    """Return `value` when it is an object with no other keys than `known`, else raise InvalidRequest."""
    if not isinstance(value, Mapping):
        raise InvalidRequest(field, f"must be an object, not {echo(value)}")
    for key in value:
        if key not in known:
            name = short_ascii(str(key))
            raise InvalidRequest(f"{field}.{name}", unknown_key(name, known, f"{field} knows {listing(known)}"))
    return value


def check_boolean(value: object, field: str) -> bool:
    """Return `value` when it is true or false, else raise InvalidRequest. 0, 1 and "true" are refused."""
    if not isinstance(value, bool):
        raise InvalidRequest(field, f"must be true or false, not {echo(value)}")
    return value


def check_number(value: object, name: str) -> None:
    """Raise `ValueError` for an integer that no column of 64 bits holds, or a number that is none."""
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} is an integer of {value.bit_length()} bits, 64 are the most")
    if type(value) is float and not isfinite(value):
        raise ValueError(f"{name} is {value}, no finite number")


def nearest(name: str, known: Collection[str]) -> str | None:
    """The one of `known` that a misspelt `name` was meant to be. None where none is near.

    Case, `-` and `_` make no difference. A name that is too long to be shown is near to none.
    """
    if len(name) > MAX_ECHO_CHARS:
        return None
    spellings = {_letters(each): each for each in known}
    found = difflib.get_close_matches(_letters(name), spellings, n=1, cutoff=_NEAR)
    return spellings[found[0]] if found else None


def did_you_mean(name: str, known: Collection[str]) -> str:
    """` Did you mean 'fidelity'?`, to stand behind what is said, or nothing."""
    meant = nearest(name, known)
    return "" if meant is None else f" Did you mean '{meant}'?"


def unknown_key(name: str, known: Collection[str], knows: str) -> str:
    """What is said of a key that nobody knows. `knows` lists the known ones."""
    guess = did_you_mean(name, known)
    return f"unknown key; {knows}.{guess}" if guess else f"unknown key; {knows}"


def _letters(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def listing(names: Collection[str]) -> str:
    """The names that may be chosen: `'a' or 'b'`."""
    return " or ".join(f"'{name}'" for name in names)


def echo(value: object) -> str:
    """The offending value as ASCII text, cut short. It goes into error bodies and logs."""
    return short_ascii(ascii(value))


def short_ascii(text: str) -> str:
    """The text as ASCII, cut short."""
    text = text.encode("ascii", "backslashreplace").decode("ascii")
    return text if len(text) <= MAX_ECHO_CHARS else text[: MAX_ECHO_CHARS - 3] + "..."


def echo_json(value: object) -> str:
    """The bad value as JSON names it: a string or a number shortened, of anything else its kind."""
    if isinstance(value, str):
        return ascii(value if len(value) <= MAX_ECHO_CHARS else value[: MAX_ECHO_CHARS - 3] + "...")
    if value is None or isinstance(value, bool | float):
        return json.dumps(value)
    if isinstance(value, int):
        return str(value) if value.bit_length() <= MAX_INTEGER_BITS else "a very large number"
    return {"dict": "an object", "list": "an array"}.get(type(value).__name__, type(value).__name__)
