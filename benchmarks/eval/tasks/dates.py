"""A date as people write it: the forms of one day that dateutil reads, with which OOLONG's scorer reads dates. Pure.

    Jul 06, 2024    July 6th, 2024    Saturday, 6th of July 2024    2024-07-06    07/06/2024    6.7.2024    20240706

A month has its name or its number, and a name may be cut to three letters. A day may have its ending, and a weekday may
stand beside it. Marks and "of" are passed over, and any other word makes it no date. Of two numbers that may both be
months, the first is the month.

Decision: dateutil takes a missing day, month or year from today. So what it makes of "July 2024" changes by the day,
and here it is no date. Nor is what has a time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date

_TOKENS = re.compile(r"[0-9]+|[^\W0-9_]+|.", re.DOTALL)
_PASSED_OVER = frozenset({*" \t\n.,;-/'", "at", "on", "and", "ad", "of", "st", "nd", "rd", "th"})
_REFUSED = re.compile(r"[0-9]\.[a-z]+\.\.|[-/.]'|[a-z]\.[0-9]+\.[0-9]+\.\s*$")
"""Some marks in a row, and a full stop behind parts that stops hold together. Dateutil refuses both."""
_NAMES_OF_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_MONTHS = {text: number for number, name in enumerate(_NAMES_OF_MONTHS, 1) for text in (name, name[:3])} | {"sept": 9}
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_WEEKDAYS = frozenset(text for name in _DAYS for text in (name, name[:3]))
_MOST_OF_MONTHS, _MOST_OF_DAYS = 12, 31
_CENTURY, _FIRST_OF_1900 = 100, 69
"""A year of two digits is one of 1969 to 2068, as in POSIX."""


def read_date(text: str) -> date | None:
    """The date that the whole text tells, None where it tells none."""
    text = text.lower()
    if _REFUSED.search(text):
        return None
    numbers: list[str] = []
    month_at = None
    for token in _TOKENS.findall(text):
        if token.isdecimal():
            numbers += (token[:4], token[4:6], token[6:]) if len(token) == len("20240706") else (token,)
        elif token in _MONTHS and month_at is None:
            month_at = len(numbers)
            numbers.append(str(_MONTHS[token]))
        elif token not in _PASSED_OVER and token not in _WEEKDAYS:
            return None
    if len(numbers) != len("ymd"):
        return None
    order = _order(numbers, month_at)
    year, month, day = (int(numbers[order.index(part)]) for part in "ymd")
    if len(numbers[order.index("y")]) <= len("24"):
        year += 1900 if year >= _FIRST_OF_1900 else 2000
    try:
        return date(year, month, day)
    except (ValueError, OverflowError):
        return None


def _order(numbers: Sequence[str], month_at: int | None) -> str:
    """Which of the three numbers is year, month and day, such as `mdy`."""
    year_at = next((at for at, number in enumerate(numbers) if len(number) > len("24")), None)
    first, second, _ = (int(number) for number in numbers)
    if month_at is None:
        if year_at == 0 or first > _MOST_OF_DAYS:
            return "ymd"
        return "dmy" if first > _MOST_OF_MONTHS else "mdy"
    if year_at is None:
        # Without a name of four digits the other two are told apart by their size and place.
        is_year_first = (first if month_at == 1 else second) > _MOST_OF_DAYS
        return {(0, True): "myd", (0, False): "mdy", (1, True): "ymd", (1, False): "dmy", (2, True): "dym"}.get(
            (month_at, is_year_first), "ydm"
        )
    letters = ["d"] * len(numbers)
    letters[month_at], letters[year_at] = "m", "y"
    return "".join(letters)
