"""Which dates the scorer of OOLONG reads.

Source: abertsch72/oolong, src/eval/eval_helpers.py, commit 606e5384f1f3eb370bf0ea168888e76d05379be4, which calls
`dateutil.parser.parse`. The values are those of dateutil 4.0.0 when it is run, but for the last test.
"""

from __future__ import annotations

from datetime import date

import pytest

from acmserve.bench.eval.tasks import oolong
from acmserve.bench.eval.tasks.dates import read_date


@pytest.mark.parametrize(
    "written",
    [
        "Jul 06, 2024",
        "July 6, 2024",
        "July 6th, 2024",
        "JULY 6TH 2024.",
        "6 July 2024",
        "6th of July, 2024",
        "06 Jul. 2024",
        "6-Jul-2024",
        "2024 July 6",
        "2024-Jul-06",
        "July 2024 6",
        "Saturday, July 6, 2024",
        "Sat 6 Jul 2024",
        "Monday, July 6, 2024",  # a weekday is not compared
        "July 6, 2024 AD",
        "2024-07-06",
        "2024/7/6",
        "2024.07.06",
        "20240706",
        "07/06/2024",
        "7-6-2024",
        "7.6.2024",
        "07/06/24",
        "July 6 '24",
    ],
)
def test_a_date_is_read_in_each_common_form(written: str) -> None:
    assert read_date(written) == date(2024, 7, 6)
    assert oolong.score(f"Date: **[{written}]**", "[datetime.date(2024, 7, 6)]", oolong.DATE) == 1


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("06/07/2024", date(2024, 6, 7)),  # the month first, where both may be it
        ("16/07/2024", date(2024, 7, 16)),
        ("July 99 6", date(1999, 7, 6)),
        ("99 July 6", date(1999, 7, 6)),
        ("6 99 July", date(1999, 7, 6)),
        ("24 6 July", date(2024, 7, 6)),
        ("Sept. 3rd, 1999", date(1999, 9, 3)),
    ],
)
def test_parts_are_told_apart_by_place_and_size(written: str, read: date) -> None:
    assert read_date(written) == read


@pytest.mark.parametrize(
    "written",
    [
        "",
        "the 6th of July 2024",
        "July 6, 2024 (Saturday)",
        "July 6 or 7, 2024",
        "July 32, 2024",
        "2024-13-13",
        "July August 2024",
        "6 2024 7",
        "July 6, 2024!",
        "2024.Mar..03",
        "July.6.2024.",
        "7/6/'24",
        "July 6, 20240",
        "tomorrow",
    ],
)
def test_what_is_no_date_is_not_read(written: str) -> None:
    assert read_date(written) is None


@pytest.mark.parametrize("written", ["July 6", "July 2024", "2024", "July", "Saturday", "2024-07"])
def test_a_missing_part_is_not_taken_from_today(written: str) -> None:
    """By our own rule. Dateutil takes the part from today, so its value changes by the day."""
    assert read_date(written) is None
