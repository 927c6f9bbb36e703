"""What a server learns from the harm that moved KV did: nothing, an estimate, or how bold `auto` is.

It reads a setting, and measures nothing.
"""

from __future__ import annotations

from enum import Enum

from acmserve.errors import InvalidRequest
from acmserve.plan.calibration import EVERY, LEVELS
from acmserve.validation import echo, listing


class HarmMode(Enum):
    """`measure`: answers under moved KV are judged where idle time makes them exact. `follow`: `auto` learns of it."""

    OFF = "off"
    MEASURE = "measure"
    FOLLOW = "follow"


def parse_harm(text: str) -> HarmMode:
    """The mode that a setting names, the default for "". Raises `InvalidRequest`."""
    names = [mode.value for mode in HarmMode]
    if text and text not in names:
        raise InvalidRequest("--harm", f"{echo(text)} is not known.", f"Choose {listing(names)}.")
    return HarmMode(text) if text else HarmMode.FOLLOW


def check_boldest(text: str) -> None:
    """Raise `InvalidRequest` unless a setting names a level that a server may take, or is "".

    `every` is none of them: it moves whatever can be moved, so that a calibration can measure that.
    """
    levels = [level for level in LEVELS if level != EVERY]
    if text and text not in levels:
        found = "measures moves, and serves nobody" if text == EVERY else "is no level"
        raise InvalidRequest("--boldest", f"{echo(text)} {found}.", f"Choose {listing(levels)}.")
