"""How long `search_context` takes over a context of a million characters: `acmserve bench search`.

Measured is the whole tool call, arguments in, result text out, as the server makes it; no engine is needed. The context
is Latin or Cyrillic text (one and two bytes a character in memory) in 1, 100 and 5,000 messages, every tenth folded.
The queries: one that stands there once (in the last folded message), one that stands there all over, one that is
nowhere (searched twice, the second time in any case), one in another case, and 100,000 characters that are nowhere.

Gate in front of each number: matches and their positions are those of a regular expression over the same texts.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from acmserve.bench.harness.benchmark import Benchmark
from acmserve.bench.harness.machine import describe_machine, one_line
from acmserve.bench.harness.options import add_report_options
from acmserve.context.edits.fragments import cut_messages, fold
from acmserve.context.session.history import adopt
from acmserve.context.session.state import SessionState
from acmserve.context.tools.run import ToolCall, ToolContext, ToolOutcome, run_tool

NUM_CHARS = 10**6
BUDGET_MS = 20.0
MAX_RESULTS = 50
ALPHABETS = {"latin": "abcdefghijklmnopqrstuvwxyz", "cyrillic": "абвгдежзийклмнопрстуфхцчшщъыьэюя"}
NUM_MESSAGES = (1, 100, 5000)


class SearchWords:
    """Counts words; a search counts nothing, only the folds before it do."""

    def starts(self, text: str) -> Sequence[int]:
        return [match.start() for match in re.finditer(r"\s*\S+", text)]


@dataclass(frozen=True, slots=True)
class SearchRow:
    """Milliseconds of one query over one context."""

    script: str
    num_messages: int
    query: str
    num_matches: int
    median_ms: float
    worst_ms: float


def make_context(script: str, num_messages: int, seed: int = 0) -> SessionState:
    """`NUM_CHARS` characters of sentences; every tenth message is folded, the last one of them holds the needle."""
    source = random.Random(seed)
    words = ["".join(source.choices(ALPHABETS[script], k=source.randint(2, 9))) for _ in range(5000)]
    size = NUM_CHARS // num_messages
    texts = []
    for _ in range(num_messages):
        text = " ".join(source.choices(words, k=size // 4 + 20))[:size]
        texts.append(text[:-2] + ".\n")
    last = (num_messages - 1) // 10 * 10
    needle = needle_of(script)
    texts[last] = texts[last][: size // 2] + needle + texts[last][size // 2 + len(needle) :]
    state = adopt(SessionState(), [{"role": "user", "content": text} for text in texts]).state
    for message in range(0, num_messages, 10):
        cut = cut_messages(state, message, message + 1, SearchWords())
        state = fold(cut.state, cut.fragments[0].fragment_id, "sculptor", SearchWords())
    return state


def needle_of(script: str) -> str:
    """Words with a space, a capital and a digit: nothing in the context looks like it."""
    return f" {ALPHABETS[script][:8].capitalize()} 7 "


def queries(script: str) -> Iterator[tuple[str, str]]:
    """The name of a query, and the query."""
    alphabet = ALPHABETS[script]
    yield "present once", needle_of(script).strip()
    yield "all over", alphabet[4]
    yield "absent", "no such 1234 words"
    yield "other case", needle_of(script).strip().upper()
    yield "all over, other case", alphabet[4].upper() + alphabet[5]
    yield "absent, 100,000 characters", alphabet[0] * 100_000


def expected(state: SessionState, query: str) -> list[tuple[int, int, int]]:
    """Entry, start and end of every match, by regular expression; in any case where there is none in the same."""
    for flags in (re.NOFLAG, re.IGNORECASE):
        pattern = re.compile(re.escape(query), flags)
        found = [
            (index, match.start(), match.end())
            for index, entry in enumerate(state.entries)
            for match in pattern.finditer(entry.message["content"])
        ]
        if found:
            return found
    return []


def is_right(state: SessionState, outcome: ToolOutcome, matches: Sequence[tuple[int, int, int]]) -> bool:
    """The gate: the hits and their number, and that the search changed nothing that is rendered."""
    hits = [(hit.place.entry, hit.start, hit.end) for hit in outcome.state.hits]
    total = re.search(r"([\d,]+) match", outcome.result.splitlines()[0])
    num_told = int(total.group(1).replace(",", "")) if total else 0
    same = outcome.state.entries is state.entries and outcome.state.fragments is state.fragments
    return same and hits == list(matches[:MAX_RESULTS]) and num_told == len(matches)


def measure(state: SessionState, script: str, name: str, query: str, repetitions: int) -> SearchRow | None:
    """Time one query; None where its result is wrong."""
    arguments = {"query": query, "max_results": MAX_RESULTS, "context_size": 200}
    bench = ToolContext(SearchWords())
    call = ToolCall("search_context", json.dumps(arguments))
    matches = expected(state, query)
    if not is_right(state, run_tool(state, call, bench), matches):
        return None
    times = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        run_tool(state, call, bench)
        times.append(1e3 * (time.perf_counter() - begin))
    median, worst = round(statistics.median(times), 2), round(max(times), 2)
    return SearchRow(script, len(state.entries), name, len(matches), median, worst)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, write the JSON file; 1 where a result was wrong or a median over the budget."""
    parser = argparse.ArgumentParser(
        prog="acmserve bench search",
        description=f"search_context over {NUM_CHARS:,} characters, against a budget of {BUDGET_MS:g} ms a call.",
    )
    parser.add_argument("--repetitions", type=int, default=25, help="timed calls per row (default: 25)")
    add_report_options(parser, quick="five repetitions: a look, not a measurement", plot=False)
    options = parser.parse_args(argv)
    if options.quick:
        options.repetitions = 5
    if options.repetitions < 1:
        parser.error("--repetitions must be at least 1")
    machine = describe_machine()
    print(one_line(machine))
    print(f"{'text':10}{'messages':>9}  {'query':28}{'matches':>9}{'median':>12}{'worst':>12}")
    rows: list[SearchRow] = []
    wrong = 0
    for script in ALPHABETS:
        for num_messages in NUM_MESSAGES:
            state = make_context(script, num_messages)
            for name, query in queries(script):
                row = measure(state, script, name, query, options.repetitions)
                if row is None:
                    wrong += 1
                    print(f"{script:10}{num_messages:9}  {name:28}: the result is wrong; not timed")
                    continue
                rows.append(row)
                print(
                    f"{script:10}{num_messages:9}  {name:28}{row.num_matches:9,}{row.median_ms:9.2f} ms"
                    f"{row.worst_ms:9.2f} ms",
                    flush=True,
                )
    slow = [row for row in rows if row.median_ms >= BUDGET_MS]
    print(f"budget {BUDGET_MS:g} ms: {len(rows) - len(slow)} of {len(rows) + wrong} kept")
    if options.json is not None:
        report: dict[str, Any] = {"machine": machine, "correct": wrong == 0, "budget_ms": BUDGET_MS}
        report |= {"num_chars": NUM_CHARS, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 1 if wrong or slow else 0


BENCHMARK = Benchmark("search", "what one search_context call takes over a million characters", main)


if __name__ == "__main__":
    sys.exit(main())
