"""A person's own words for the two models that keep a map, in place of ours: a text with places to be filled.

    distiller       {map} {trajectory}   and where wanted {sections} {ground_truth}
    cartographer    {map} {review}       and where wanted {sections} {budget} {num_tokens} {question}

Other braces are text, so that JSON can stand in it. The schemas of the answers stay ours (`prompts.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from acmserve.errors import InvalidRequest
from acmserve.validation import check_object, echo

MAX_CHARS = 20_000
PLACES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "distiller": (("map", "trajectory"), ("sections", "ground_truth")),
    "cartographer": (("map", "review"), ("sections", "budget", "num_tokens", "question")),
}
"""For each model the places that have to be there, and those that may be."""
_PLACE = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True, slots=True)
class Instructions:
    """The texts of a person. None: ours."""

    distiller: str | None = None
    cartographer: str | None = None


OURS = Instructions()


def fill(text: str, values: Mapping[str, object]) -> str:
    """The text with its places filled. What has no value is text."""
    return _PLACE.sub(lambda place: str(values.get(place[1], place[0])), text)


def parse_instructions(value: object, where: str) -> Instructions:
    """Read `acm.map.update.prompts`. Raises `InvalidRequest` for a text that lacks a place."""
    given = {name: text for name, text in check_object(value, where, tuple(PLACES)).items() if text is not None}
    for name, text in given.items():
        field = f"{where}.{name}"
        if not isinstance(text, str) or not text.strip() or len(text) > MAX_CHARS:
            raise InvalidRequest(field, f"must be a text of at most {MAX_CHARS:,} characters, not {echo(text)}.")
        needed, allowed = PLACES[name]
        missing = [place for place in needed if f"{{{place}}}" not in text]
        if missing:
            there = ", ".join(f"{{{place}}}" for place in (*needed, *allowed))
            raise InvalidRequest(field, f"lacks {{{missing[0]}}}.", f"Its places are {there}.")
    return Instructions(**given)
