"""Edited turns of recorded rounds, and how many would come behind a long pause with the tools of real agents. Pure.

    as played    each pause from all tools, between 0.5 and 5 s
    by kind      of the tool that was called, or of a person, with the seed of the round
    expected     the same without a draw: the sum of the shares of waits that are so long

Decision: both are told. A draw is what a run would do, and with fifteen turns another seed gives another number.

Which tool stands in front of a turn hangs on the script alone. So the script is written once more, on a library of six
functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from acmserve.bench.agent.pause import FILE_EDIT, FILE_READ, draw_waits
from acmserve.bench.agent.recording import waits_of
from acmserve.bench.agent.result_table import Report, ResultTable
from acmserve.bench.agent.scripted_agent import Trace, make_trace
from acmserve.bench.harness.library_text import Library
from acmserve.bench.harness.markdown_text import ratio
from acmserve.bench.micro.words import WordCounter
from acmserve.bench.precompute.bars import LEAST_PAUSE_SECONDS
from acmserve.bench.precompute.runs import PREDICT, THOUGHTS

_NAMES = ("alpha_one", "bravo_two", "charlie_three", "delta_four", "echo_five", "foxtrot_six")
_LIBRARY = Library(
    {"library.py": "".join(f"def {name}(): ...\n" for name in _NAMES)}, {"calls": "A call calls a callable object."}
)


@dataclass(frozen=True, slots=True)
class EditedTurns:
    """Of all rounds: edited turns, and those of them behind a pause of a second, in the three ways.

    `behind_files` are those behind a tool that searches, reads or edits a file.
    """

    num: int
    as_played: int
    by_kind: int
    expected: float
    behind_files: int


def edited_turns(report: Report) -> EditedTurns | None:
    """None of dropped reasoning, whose conversations call no tools."""
    rounds_of, rounds = report["rounds_of"], report["rounds"]
    if rounds_of["policy"] == THOUGHTS:
        return None
    found = []
    for one in rounds:
        turns, num_tasks = one["runs"][PREDICT]["turns"], rounds_of["num_tasks"]
        trace = _script(num_tasks * rounds_of["num_rounds"]).with_tasks(one["number"] * num_tasks, num_tasks)
        columns = zip(turns["evicted_tokens"], turns["pause_seconds"], _pauses(trace, one["number"]), strict=True)
        found += [(played, *drawn) for evicted, played, drawn in columns if evicted]
    return EditedTurns(
        num=len(found),
        as_played=sum(played >= LEAST_PAUSE_SECONDS for played, *_ in found),
        by_kind=sum(drawn >= LEAST_PAUSE_SECONDS for _, drawn, *_ in found),
        expected=sum(share for _, _, share, _ in found),
        behind_files=sum(is_file for *_, is_file in found),
    )


@cache
def _script(num_tasks: int) -> Trace:
    return make_trace(_LIBRARY, WordCounter(), num_tasks)


def _pauses(trace: Trace, seed: int) -> Iterator[tuple[float, float, bool]]:
    """In front of each turn: seconds that are drawn, the share of such waits that are long, and whether files take it.

    A later step of one request waits for nothing.
    """
    waits = waits_of(trace.requests)
    for request, wait, drawn in zip(trace.requests, waits, draw_waits(waits, seed), strict=True):
        share = 1 - wait.share_below(LEAST_PAUSE_SECONDS)
        yield from [(drawn, share, wait in (FILE_READ, FILE_EDIT)), *[(0.0, 0.0, False)] * (len(request.said) - 1)]


def _rows(report: Report) -> Iterator[list[str]]:
    found = edited_turns(report)
    if found is not None:
        yield ["as in these rounds", str(found.num), str(found.as_played)]
        yield ["by kind of tool", str(found.num), str(found.by_kind)]
        yield ["by kind of tool, expected", str(found.num), ratio(found.expected, 1)]


REAL_PAUSES = ResultTable(
    ("pauses", "edited turns", f"behind {LEAST_PAUSE_SECONDS:g} s or more"),
    _rows,
    "How many edited turns come behind a long pause, and how many would if tools took as long as those of real agents.",
)
