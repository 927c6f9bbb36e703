"""Sections about size: how a fold does where contexts are long, edits are early or late, and holes are many."""

from __future__ import annotations

from acmserve.bench.harness.markdown_text import count, ratio
from acmserve.bench.report.page_section import PageSection, Reports, page_table
from acmserve.bench.scale.main import NUMBERS_OF_HOLES
from acmserve.bench.scale.table import COUNTS, HOLES, LENGTHS, PLACES, by_length

MOST_HOLES = max(NUMBERS_OF_HOLES)
TIMES, TOKENS = "scale", "scale-counts"


def _flat(reports: Reports) -> str:
    first, *_, last = by_length(reports[TIMES])
    return (
        f"With `reuse` a fold takes {ratio(first['appends'])} appends at {count(first['context_tokens'])} tokens, and "
        f"{ratio(last['appends'])} at {count(last['context_tokens'])}. There stock vLLM takes "
        f"{_times(last, 'stock')} times as long, and {_times(last, 'defaults')} times at its own defaults."
    )


def _times(cell: dict[str, dict[str, float]], name: str) -> str:
    return f"{cell['medians'][name] / cell['medians']['reuse']:.0f}"


def _counted(reports: Reports) -> str:
    cells = reports[TOKENS]["cells"]
    most = max(cell["receipts"]["reuse"]["computed_tokens"] - cell["new_tokens"] for cell in cells)
    longest = max(cell["context_tokens"] for cell in cells)
    old = f"at most {most} old tokens are" if most > 0 else "no old token is"
    return f"Up to {count(longest)} tokens and {MOST_HOLES} holes, {old} computed under `reuse`."


SCALE = (
    PageSection(
        "Length, place and holes",
        "Does a fold stay as cheap where the context is long, the edit is late, or the holes are many?",
        "acmserve bench scale",
        "Receipts add up, nine tenths of what stands behind an edit move, and `exact` gives stock's tokens.",
        (TIMES,),
        (page_table(LENGTHS, TIMES), page_table(PLACES, TIMES), page_table(HOLES, TIMES)),
        (
            "Three eighths of what stands behind the first edit are removed. An append has as many new tokens.",
            "SmolLM2 was trained for 8,192 tokens. Above that only its times mean something.",
        ),
        plot="scale.png",
        is_optional=True,
        answer=_flat,
    ),
    PageSection(
        "Tokens at length",
        "Which tokens does a fold compute where contexts are longer than this machine can time?",
        "acmserve bench scale --model tiny",
        "As above, with a random model of one layer.",
        (TOKENS,),
        (page_table(COUNTS, TOKENS),),
        is_optional=True,
        answer=_counted,
    ),
)
