"""Sections about size: how a fold does where contexts are long, edits are early or late, and holes are many."""

from __future__ import annotations

from acmserve.bench.edit.times import AT_DEFAULTS, AUTO, DEFAULTS
from acmserve.bench.harness.markdown_text import count, interval, ratio
from acmserve.bench.memory.main import BLOCKS, BYTES, mebibytes
from acmserve.bench.memory.pool_watch import EXACT, REUSE, STOCK
from acmserve.bench.report.page_section import PageSection, Reports, page_table
from acmserve.bench.scale.bars import by_length
from acmserve.bench.scale.main import FLOAT32_TO, NUMBERS_OF_HOLES
from acmserve.bench.scale.table import BARS, COUNTS, TIMES_TABLES

MOST_HOLES = max(NUMBERS_OF_HOLES)
TIMES, TOKENS, MEMORY = "scale", "scale-counts", "memory"
_GROUP = "Size: long contexts, late edits, many holes, memory and pool"


def _flat(reports: Reports) -> str:
    """At vLLM's own defaults, and how many bars are met."""
    report = reports[TIMES]
    first, *_, last = [cell for cell in by_length(report) if DEFAULTS in cell]
    medians, bars = last["medians"], report["bars"]
    reuse, auto = (medians[DEFAULTS] / medians[name + AT_DEFAULTS] for name in (REUSE, AUTO))
    return (
        f"At vLLM's own defaults a fold with `reuse` takes {ratio(first[DEFAULTS]['appends'])} appends at "
        f"{count(first['context_tokens'])} tokens, and {ratio(last[DEFAULTS]['appends'])} at "
        f"{count(last['context_tokens'])}. There stock vLLM takes {reuse:.0f} times as long, and {auto:.1f} times as "
        f"long as `auto`. Of {len(bars)} bars {sum(bar['is_met'] for bar in bars)} are met."
    )


def missed_at_length(reports: Reports) -> str:
    """The bars of `bench scale` that are missed, of which the first is told whole. "" where all are met."""
    missed = [bar for bar in reports[TIMES]["bars"] if not bar["is_met"]]
    if not missed:
        return ""
    first, limit = missed[0], "most" if missed[0]["is_most"] else "least"
    found = "was not measured" if first["value"] is None else f"is {ratio(first['value'])}{interval(first['interval'])}"
    more = f" Missed bars of long contexts and many holes: {len(missed)}." if len(missed) > 1 else ""
    return f"Long contexts: {first['what']}, {found}, and was to be {ratio(first['bar'], 1)} at {limit}.{more}"


def _repeated(reports: Reports) -> str:
    report = reports[TIMES]
    left = " ".join(f"Left out: {one['cell']}, of {one['num_whole']} repetitions." for one in report["left_out"])
    told = (
        f"Times are medians of {report['repetitions']} repetitions, with {report['rounds']} rounds of `reuse` in each. "
        "All have the same text, which an engine computes once. So the times of `auto` are those of one text."
    )
    return f"{told} {left}".strip()


def _counted(reports: Reports) -> str:
    cells = reports[TOKENS]["cells"]
    most = max(cell["receipts"]["reuse"]["computed_tokens"] - cell["new_tokens"] for cell in cells)
    longest = max(cell["context_tokens"] for cell in cells)
    old = f"at most {most} old tokens are" if most > 0 else "no old token is"
    return f"Up to {count(longest)} tokens and {MOST_HOLES} holes, {old} computed under `reuse`."


def _played(reports: Reports) -> str:
    report = reports[MEMORY]
    sizes = report["sizes"]
    return (
        f"{report['num_turns']} prompts. Each second one behind the first folds {sizes['folded']} tokens. "
        f"The first has {count(sizes['context'])} tokens, and each of the others brings {sizes['new']}."
    )


def _ballast(reports: Reports) -> str:
    found = reports[MEMORY]["ballast"]
    return f"Control: of {mebibytes(found['held_bytes'])} that were held, {mebibytes(found['seen_bytes'])} were seen."


def _taken(reports: Reports) -> str:
    ways = {row["name"]: row for row in reports[MEMORY]["rows"]}
    stock, exact, reuse = (ways[name] for name in (STOCK, EXACT, REUSE))
    grown = [mebibytes(way["after_bytes"] - way["ready_bytes"]) for way in (stock, exact, reuse)]
    return (
        f"A step of `reuse` holds at most {reuse['most_held_blocks']} blocks of {reuse['num_blocks']}, one of stock "
        f"{stock['most_held_blocks']}. Between turns neither holds any. "
        f"A server's memory grows by {grown[0]} with stock vLLM, {grown[1]} with `exact` and {grown[2]} with `reuse`."
    )


SCALE = (
    PageSection(
        "Length, place and holes",
        "Does a fold stay as cheap where the context is long, the edit is late, or the holes are many?",
        "acmserve bench scale",
        "Receipts add up, nine tenths of what stands behind an edit move, and `exact` gives stock's tokens in float32.",
        (TIMES,),
        tuple(page_table(one, TIMES) for one in (BARS, *TIMES_TABLES)),
        (
            "Three eighths of what stands behind the first edit are removed. An append has as many new tokens.",
            f"SmolLM2 was trained for 8,192 tokens. Above {count(FLOAT32_TO)} only times at defaults are measured.",
            "Each number of holes has as many new tokens. Stock computes everything there, and is not timed.",
            "With more holes more of the new tokens are markers, which stand earlier and attend to less.",
            _repeated,
            "A cold prompt of 32,768 tokens takes minutes on two cores. `--max-minutes` keeps lengths that are whole.",
        ),
        plot="scale.png",
        is_optional=True,
        group=_GROUP,
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
        group=_GROUP,
        answer=_counted,
    ),
    PageSection(
        "Memory and pool",
        "What does a conversation with folds take of the block pool and of host memory, beside stock vLLM?",
        "acmserve bench memory",
        "Under `exact` 32 tokens and log-probabilities are stock's, and moved KV fails that. Nothing is held between "
        "turns. Both counters see their controls.",
        (MEMORY,),
        (page_table(BLOCKS, MEMORY), page_table(BYTES, MEMORY)),
        (
            _played,
            "Blocks that a copy reads are held for that step alone. They are the overhead of a move in the pool.",
            "Cached blocks are nobody's: vLLM takes the oldest when it needs room.",
            "Memory is that of all processes of a server without pages of files. Written KV blocks are in it.",
            _ballast,
        ),
        is_optional=True,
        group=_GROUP,
        answer=_taken,
    ),
)
