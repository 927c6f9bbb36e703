"""Rows of cells as lines: names at the left, numbers at the right."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """One line for the heads and one for each row. Every column is as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return [
        "   ".join(f"{cell:>{width}}" if n else f"{cell:<{width}}" for n, (cell, width) in pairs).rstrip()
        for pairs in (list(enumerate(zip(row, widths, strict=True))) for row in (heads, *rows))
    ]
