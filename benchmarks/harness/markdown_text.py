"""Numbers and tables as Markdown, for the generated page of benchmarks and for the terminal.

One format for one kind of number, so that a figure reads the same everywhere. It knows no benchmark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MET, MISSED, UNDECIDED, NOT_MEASURED = "met", "missed", "not decided", "not measured"
"""What is said of a bar."""


def milliseconds(seconds: float | None) -> str:
    """`247 ms`, or nothing for None."""
    return "" if seconds is None else f"{1e3 * seconds:,.0f} ms"


def seconds(value: float, digits: int = 1) -> str:
    """`7.4 s`."""
    return f"{value:,.{digits}f} s"


def count(value: float | None) -> str:
    """`3,520`, or nothing for None and 0, so that a table shows what there is."""
    return f"{value:,.0f}" if value else ""


def share(value: float) -> str:
    """`49 %`."""
    return f"{100 * value:.0f} %"


def ratio(value: float, digits: int = 2) -> str:
    """`1.13`."""
    return f"{value:.{digits}f}"


def interval(bounds: Sequence[float] | None, scale: float = 1.0, digits: int = 2) -> str:
    """` [0.98, 1.04]`, with the space in front, or nothing for None."""
    if bounds is None:
        return ""
    low, high = (f"{scale * bound:.{digits}f}" for bound in bounds)
    return f" [{low}, {high}]"


def points(value: float, bounds: Sequence[float] | None = None) -> str:
    """A difference of shares in points: `+1.1 [-0.6, 3.0]`. What rounds to nothing is `+0.0`."""
    return f"{round(100 * value, 1) + 0.0:+.1f}{interval(bounds, 100, 1)}"


def listed(texts: Sequence[str], word: str = "and") -> str:
    """`a, b and c`."""
    return f" {word} ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


def strong(sentence: str) -> str:
    """Bold, with its last mark outside. So a sentence ends where its mark has a space behind it, and nowhere else."""
    return f"**{sentence[:-1]}**{sentence[-1]}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table. A bar inside of a cell is escaped."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
