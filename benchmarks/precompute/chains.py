"""A scripted conversation with reasoning that the template drops when the user speaks: the edit that nobody asks for.

    chain   user: "Look around in 3."      append
            think, call | result, 6 times  append, behind a pause
            think, answer
            user: "What did you see?"      all thoughts in front of it are gone: the edited turn
            user: "Are you sure?"          append

Results are small ones of the library agent's (`scripted_agent.py`), thoughts are library text, too. The next chain goes
on behind these messages. The template is that of `thoughts.py`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from acmserve.bench.agent.scripted_agent import Exchanged, Trace, hermes
from acmserve.bench.harness.library_text import Library, cut
from acmserve.context.transcript.tokenizer import Tokenizer, count_tokens

NUM_STEPS, THOUGHT_TOKENS, RESULT_TOKENS = 6, 100, (40, 240)
USER_MESSAGES = 3
"""Of a chain: each begins what a trace calls a task."""
_END = "</think>\n\n"
_SEED = 29
_CHARS_OF_A_THOUGHT = 16 * THOUGHT_TOKENS


def make_chains(library: Library, tokenizer: Tokenizer, num_chains: int) -> Trace:
    """The same for the same library, tokenizer and number. A longer one begins as a shorter one does."""
    draw = random.Random(_SEED)
    return Trace(tuple(step for n in range(num_chains) for step in _chain(library, tokenizer, draw, n)), {})


def _chain(library: Library, tokenizer: Tokenizer, draw: random.Random, number: int) -> Iterator[Exchanged]:
    asked: str | None = f"Look around in {number + 1}."
    for _ in range(NUM_STEPS):
        path = draw.choice(list(library.sources))
        line = draw.randint(1, 400)
        call = hermes("read", path=path, line=str(line))
        result = cut(library.lines(path, line), draw.randint(*RESULT_TOKENS), tokenizer)
        yield Exchanged((_thought(library, tokenizer, draw) + call,), result, asked)
        asked = None
    yield Exchanged((_thought(library, tokenizer, draw) + f"I have looked around in {number + 1}.",), None)
    yield Exchanged((f"I saw {NUM_STEPS} files.",), None, "What did you see?")
    yield Exchanged(("Yes, I am.",), None, "Are you sure?")


def _thought(library: Library, tokenizer: Tokenizer, draw: random.Random) -> str:
    source = library.sources[draw.choice(list(library.sources))]
    start = draw.randrange(len(source) - _CHARS_OF_A_THOUGHT)
    return f"<think>\n{cut(source[start:], THOUGHT_TOKENS, tokenizer)}\n{_END}"


def dropped_tokens(trace: Trace, tokenizer: Tokenizer) -> list[int]:
    """Tokens that the template takes out of the last prompt when each request comes. Its answer was not in it yet."""
    found, waiting, last = [], 0, 0
    for request in trace.requests:
        found.append(waiting if request.asked is not None else 0)
        waiting = 0 if request.asked is not None else waiting + last
        thought, end, _ = request.said[-1].partition(_END)
        last = count_tokens(tokenizer, thought + end) if end else 0
    return found
