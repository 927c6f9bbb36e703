"""Draws `docs/edit.svg`: the same context before and after a fold, in three colours, and what each way waits for.

    python -m acmserve.bench.report.edit_picture docs/edit.svg

Every size and every time is read from `results/edit-cpu.json`. A test compares the committed picture with this one.
Text follows the reader's light or dark setting, and the background is left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from acmserve.bench.edit.table import at_defaults, cell_of
from acmserve.bench.edit.times import EXACT, REUSE, STOCK

RESULT = Path(__file__).parents[1] / "results/edit-cpu.json"
WIDTH, LEFT, TOP = 860, 150, 34
KEPT, MOVED, COMPUTED, FOLDED = "#2da44e", "#3b82f6", "#e5534b", "#8b949e"
_STYLE = (
    "text{font:14px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#24292f}"
    ".inside{fill:#fff;text-anchor:middle}.right{text-anchor:end}.head{font-weight:600}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.inside{fill:#fff}}"
)

_SETTINGS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("Both at vLLM's own defaults: bfloat16, compiled", at_defaults),
    ("Both in float32, eager", str),
)
_BARS = (("stock vLLM", STOCK, FOLDED), ("exact (default)", EXACT, COMPUTED), ("reuse", REUSE, MOVED))

Piece = tuple[int, str, str]
"""Tokens, colour, and the text inside."""


def draw(report: Mapping[str, Any]) -> str:
    """The picture as SVG."""
    sizes, medians = report["sizes"], cell_of(report, "fold")["medians"]
    prefix, folded, suffix = sizes["prefix"], sizes["folded"], sizes["suffix"]
    hole, new = (sizes["marker"], COMPUTED, ""), (sizes["new"], COMPUTED, "")
    before = [
        (prefix, KEPT, f"{prefix:,}"),
        (folded, FOLDED, f"{folded:,} to be folded"),
        (suffix, KEPT, f"{suffix:,}"),
    ]
    exact = [(prefix, KEPT, f"{prefix:,}"), hole, (suffix, COMPUTED, f"{suffix:,}"), new]
    reuse = [(prefix, KEPT, f"{prefix:,}"), hole, (suffix, MOVED, f"{suffix:,}"), new]
    total = prefix + folded + suffix
    parts = [
        _text(LEFT, 18, f"A context of {total:,} tokens, and the turn after a fold", "head"),
        *_row(0, "before", before, total),
        *_row(1, "after, exact", exact, total),
        *_row(2, "after, reuse", reuse, total),
        *_legend(TOP + 3 * 38 + 14),
        _text(LEFT, TOP + 3 * 38 + 68, "Time to the first token of that turn", "head"),
    ]
    longest = max(medians[name_of(series)] for _, name_of in _SETTINGS for _, series, _ in _BARS)
    top = TOP + 3 * 38 + 82
    for setting, name_of in _SETTINGS:
        rows = [(title, medians[name_of(series)], color) for title, series, color in _BARS]
        parts += [_text(LEFT, top + 14, setting), *_times(top + 24, rows, longest)]
        top += 24 + len(rows) * 30 + 8
    title = "A fold: what is kept, moved and computed, and the time to the first token"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" role="img" aria-label="{title}">'
        f"\n<style>{_STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _row(number: int, name: str, pieces: Sequence[Piece], total: int) -> Iterator[str]:
    """Pieces of a context behind each other. A few tokens are drawn three pixels wide, so that they are seen."""
    top, left = TOP + 38 * number, float(LEFT)
    yield _text(LEFT - 10, top + 19, name, "right")
    for tokens, color, inside in pieces:
        width = max(3.0, (WIDTH - LEFT - 10) * tokens / total)
        yield _bar(left, top, width, 28, color)
        if inside:
            yield _text(left + width / 2, top + 19, inside, "inside")
        left += width + 1


def _legend(top: float) -> Iterator[str]:
    left = float(LEFT)
    for color, text in ((KEPT, "kept"), (MOVED, "moved, keys turned"), (COMPUTED, "computed")):
        yield _bar(left, top, 12, 12, color)
        yield _text(left + 18, top + 11, text)
        left += 40 + 8.2 * len(text)


def _times(top: float, rows: Sequence[tuple[str, float, str]], longest: float) -> Iterator[str]:
    for number, (name, seconds, color) in enumerate(rows):
        width = (WIDTH - LEFT - 80) * seconds / longest
        yield _text(LEFT - 10, top + 30 * number + 16, name, "right")
        yield _bar(LEFT, top + 30 * number, width, 22, color)
        digits = 1 if seconds >= 1 else 2
        yield _text(LEFT + width + 8, top + 30 * number + 16, f"{seconds:.{digits}f} s")


def _bar(left: float, top: float, width: float, height: float, color: str) -> str:
    return f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:g}" rx="2" fill="{color}"/>'


def _text(left: float, top: float, text: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{left:.1f}" y="{top:.1f}"{named}>{escape(text)}</text>'


def main(argv: Sequence[str]) -> int:
    """Write the picture to the file that is named."""
    (target,) = argv
    Path(target).write_text(draw(json.loads(RESULT.read_text(encoding="utf-8"))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
