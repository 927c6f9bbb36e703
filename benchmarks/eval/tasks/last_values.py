"""What an answer says of the last values of keys, read as the published scorer of PI-LLM reads it. Pure.

    "The current value of material is reed."           material: reed
    "sport: The last seen value is golf"               sport: golf
    "The latest values:\\n* bug: moth\\n* law: tort"     bug: moth, law: tort

A key and a value have one or two words, of letters, digits and underscores. So a value with a hyphen is not read. Of a
key that is named several times the last value counts, and a sentence counts more than a pair behind a colon. Pairs
count alone where the answer says at all that it tells last values. The key has to be written as it is asked for.

An answer that is empty, or tells of an error in a few words, is no answer. The published mean leaves it out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_TIMES = "most recent|final|last|latest|current|up-to-date|asked|queried"
_THINGS = "value|word|term"
_OPENS, _CLOSES = r"[\"'\[<]?", r"[\"'\]>]?"
_NAME = rf"({_OPENS}\w+(?:\s+\w+)?{_CLOSES})"
_FIRST_NAME = rf"({_OPENS}\b\w+(?:\s+\w+)?{_CLOSES})"
"""It begins with a whole word, so that a long word is not tried at each of its letters."""
_IS = rf"\s+(?:is|was)(?:\s*:\s*)?\s+{_NAME}(?=[\n,.;:]|$)"
_OF = rf"(?:{_THINGS})?s?(?:\s+\w+)?\s+(?:with|for|of|to)?\s+(?:the )?(?:category|key)?\s*{_NAME}"
_SENTENCES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"{_FIRST_NAME}\s*[:-]\s*(?:the)?\s*(?:last seen|{_TIMES}|specified)\s+(?:{_THINGS})s?{_IS}",
        rf"the\s*{_OF}{_IS}",
        rf"(?:{_TIMES}|specified)\s+{_OF}{_IS}",
    )
)
"""Those of the later patterns count more."""
_ANNOUNCES = re.compile(rf"(?:{_TIMES})\s+(?:{_THINGS})", re.IGNORECASE)
_WORDS, _MARKS = r"(\w+(?:[ \t]+\w+)?)", r"['\"\[\]<>]*"
_PAIRS = re.compile(rf"(?:[-,.;:\n]|^)\s*{_MARKS}{_WORDS}{_MARKS}\s*:\s*{_MARKS}{_WORDS}(?={_MARKS}\s*(?:[\n,.;:]|$))")
_QUOTES = re.compile(r"[*'\"\[\]{}()<>]")
_ENDS = re.compile(r"[\n,.;:]")
_ERROR = re.compile(r"\berror\b", re.IGNORECASE)
_CHARS_OF_AN_ERROR = 680
_LONG_GAP = re.compile(r"\s{9,}")


def is_answer(answer: str) -> bool:
    """Whether the published scorer takes it for an answer, and not for a failed request."""
    if not answer or "error code" in answer.lower() or answer.startswith(("error", "Error")):
        return False
    return len(answer) >= _CHARS_OF_AN_ERROR or _ERROR.search(answer) is None


def read_values(answer: str) -> dict[str, str] | None:
    """The value of each key that the answer tells. None where it is no answer."""
    if not is_answer(answer):
        return None
    text = re.sub(r"\\(?!n)", "", answer).replace("*", "")
    # Several patterns for white space stand in a row above. In a gap of thousands they would take for ever.
    text = _LONG_GAP.sub(_shorter, text)
    found: dict[str, str] = dict(_PAIRS.findall(text)) if _ANNOUNCES.search(text) else {}
    found |= dict(_told(text))
    found.pop("key", None)
    return found


def _told(text: str) -> Iterator[tuple[str, str]]:
    for pattern in _SENTENCES:
        for names in pattern.findall(text):
            key, value = (_ENDS.split(_QUOTES.sub("", name).strip())[0] for name in names)
            if key and value:
                yield key, value


def _shorter(gap: re.Match[str]) -> str:
    """A gap that is met by the same patterns: its ends, and a line's end where it has one."""
    return gap[0][:4] + "\n" * ("\n" in gap[0]) + gap[0][-4:]
