"""What the receipts of a cell say of tokens, for tables and pages of `bench edit` and `bench scale`. Pure: JSON in.

    all_receipts    of each request of a series: the median, and the range where they differ
    receipts        of the last request alone, in files of older runs

Each repetition has another text, and the text decides what `auto` computes. So a file that has the last receipt alone
says that its count is of the last repetition. The time beside it is a median of all.
"""

from __future__ import annotations

import statistics
from typing import Any

from acmserve.bench.edit.times import AUTO
from acmserve.bench.harness.markdown_text import count


def told_tokens(cell: Any, series: str, part: str) -> str:
    """`1,104`, or `1,900 (1,104 to 2,600)`, or `1,104 in the last repetition`. "" where a receipt has no such count."""
    found = _counts(cell, series, part)
    if not found:
        return ""
    if min(found) != max(found):
        return f"{statistics.median(found):,.0f} ({min(found):,.0f} to {max(found):,.0f})"
    told = count(found[0])
    return f"{told} in the last repetition" if told and _is_last_alone(cell, series) else told


def tokens_in_words(cell: Any, series: str) -> str:
    """What a series computes, as a clause."""
    found = _counts(cell, series, "computed")
    if _is_last_alone(cell, series):
        return f"in the last repetition it computed {found[0]:,} tokens"
    told = f"it computes {statistics.median(found):,.0f} tokens"
    if min(found) == max(found):
        return told
    return f"{told} in the median, and {min(found):,.0f} to {max(found):,.0f}"


def _counts(cell: Any, series: str, part: str) -> list[int]:
    kept = cell.get("all_receipts", {}).get(series) or [cell["receipts"].get(series, {})]
    counts = [receipt.get(f"{part}_tokens") for receipt in kept]
    return [num for num in counts if num is not None]


def _is_last_alone(cell: Any, series: str) -> bool:
    is_decided_by_text = series.startswith(AUTO) and cell.get("num_repetitions", 1) > 1
    return is_decided_by_text and series not in cell.get("all_receipts", {})
