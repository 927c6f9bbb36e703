"""Long texts that tasks hide things in, and how things are hidden in them. Pure.

The text is the manual of the running Python, or the user's own. Lengths are aimed at in characters, since a client
does not know the server's tokenizer.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache

from acmserve.bench.eval.tasks.task import CHARS_PER_TOKEN
from acmserve.bench.harness.library_text import read_library


@cache
def manual() -> Mapping[str, str]:
    """The longer topics of Python's manual, by name."""
    return read_library().topics


def hay(draw: random.Random, num_tokens: int, text: str | None = None) -> str:
    """About so many tokens of `text`, or of topics of the manual in drawn order, over again where it ends."""
    num_chars = num_tokens * CHARS_PER_TOKEN
    if num_chars <= 0:
        return ""
    topics = manual()
    parts = [text] if text else [topics[name] for name in draw.sample(sorted(topics), len(topics))]
    found = ""
    while len(found) < num_chars:
        for part in parts:
            found += part.rstrip("\n") + "\n"
            if len(found) >= num_chars:
                break
    return found[:num_chars]


def hide(text: str, needles: Sequence[str], depth: int, step: int) -> str:
    """The text with each needle on a line of its own.

    The first stands `depth` percent behind the beginning of the text, and each further one `step` percent later. What
    would come behind the end stands at the end.
    """
    words = text.split(" ")
    places = [min(len(words), len(words) * (depth + number * step) // 100) for number in range(len(needles))]
    pieces, last = [], 0
    for place, needle in zip(places, needles, strict=True):
        pieces += [" ".join(words[last:place]), f"\n{needle}\n"]
        last = place
    return "".join([*pieces, " ".join(words[last:])])
