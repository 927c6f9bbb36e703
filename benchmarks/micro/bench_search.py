"""How long `search_context` takes over a context of a million characters: `acmserve bench micro search`.

Measured is the whole tool call, arguments in, result text out, as the server makes it. No engine is needed. The context
is Latin or Cyrillic text (one and two bytes a character in memory) in 1, 100 and 5,000 messages, every tenth folded.
The queries: one that stands there once (in the last folded message), one that stands there all over, and one in another
case. Two more are nowhere: one of some words, and one of 100,000 characters. What is nowhere is searched twice, the
second time in any case.

Gate in front of each number: matches and their positions are those of a regular expression over the same texts.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from acmserve.bench.micro.words import WordCounter
from acmserve.context.edits.cut import cut_messages
from acmserve.context.edits.fragments import fold
from acmserve.context.session.history import adopt
from acmserve.context.session.state import SessionState
from acmserve.context.tools.run import ToolCall, ToolContext, ToolOutcome, run_tool

NUM_CHARS = 10**6
LIMIT_MS = 20.0
MAX_RESULTS = 50
ALPHABETS = {"latin": "abcdefghijklmnopqrstuvwxyz", "cyrillic": "абвгдежзийклмнопрстуфхцчшщъыьэюя"}
NUM_MESSAGES = (1, 100, 5000)


def make_context(script: str, num_messages: int, seed: int = 0) -> SessionState:
    """`NUM_CHARS` characters of sentences. Every tenth message is folded, the last one of them holds the needle."""
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
        cut = cut_messages(state, message, message + 1, WordCounter())
        state = fold(cut.state, cut.fragments[0].fragment_id, "sculptor", WordCounter())
    return state


def needle_of(script: str) -> str:
    """Words with a space, a capital and a digit: nothing in the context looks like it."""
    return f" {ALPHABETS[script][:8].capitalize()} 7 "


QUERIES: dict[str, Callable[[str], str]] = {
    "present once": lambda script: needle_of(script).strip(),
    "all over": lambda script: ALPHABETS[script][4],
    "absent": lambda script: "no such 1234 words",
    "other case": lambda script: needle_of(script).strip().upper(),
    "all over, other case": lambda script: ALPHABETS[script][4].upper() + ALPHABETS[script][5],
    "absent, 100,000 characters": lambda script: ALPHABETS[script][0] * 100_000,
}


def expected(state: SessionState, query: str) -> list[tuple[int, int, int]]:
    """Entry, start and end of every match, by regular expression. Case is ignored where no match has the same case."""
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


@pytest.fixture(scope="module", params=[(script, num) for script in ALPHABETS for num in NUM_MESSAGES], ids=str)
def context(request: Any) -> tuple[str, SessionState]:
    """A script, and a context in it."""
    script, num_messages = request.param
    return script, make_context(script, num_messages)


@pytest.mark.parametrize("name", QUERIES)
def bench_search(benchmark: Any, context: tuple[str, SessionState], name: str) -> None:
    """One query over one context."""
    script, state = context
    query = QUERIES[name](script)
    call = search_call(query)
    matches = expected(state, query)
    assert is_right(state, run_tool(state, call, ToolContext(WordCounter())), matches)
    benchmark.group = f"{script}, {len(state.entries)} messages"
    benchmark.extra_info |= {"script": script, "num_messages": len(state.entries), "query": name}
    benchmark.extra_info |= {"num_matches": len(matches), "limit_ms": LIMIT_MS}
    benchmark(run_tool, state, call, ToolContext(WordCounter()))


def search_call(query: str) -> ToolCall:
    """The call as a model makes it."""
    return ToolCall("search_context", json.dumps({"query": query, "max_results": MAX_RESULTS, "context_size": 200}))
