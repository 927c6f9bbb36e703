"""Retrieval by BM25, as the Sculptor paper's baseline has it (appendix C.4). Pure but for the one request.

    text --> sentences --> chunks of 200 tokens --> ranked for the query --> the best, until 1,500 tokens --> question

Tokens are words here, since a client does not know the server's tokenizer. Chunks stand in the order of their rank, and
the one that reaches 1,500 is the last, as in the paper. `--retrieved` takes less, of a shorter text.

The paper names LongBench's retrieval, which ranks by `rank_bm25`. Its weights are those here. Three things differ.
LongBench hands over texts where lists of words are meant, so characters are compared there, and here words. A sentence
that is longer than a chunk is cut here. Of equal chunks the earlier one is first.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from acmserve.bench.eval.baselines.plain_text import plain_text
from acmserve.bench.eval.baselines.way_limits import PAPERS, WayLimits
from acmserve.bench.eval.play import Play

K1, B, EPSILON = 1.5, 0.75, 0.25
SYSTEM = "Answer from the given passages alone. They are parts of a longer text, the most fitting first."
_SENTENCE_ENDS = re.compile(r"(?<=[.!?;\u3002\uff01\uff1f\uff1b])\s*|\n+")


def play_retrieval(play: Play) -> str:
    """One request, with the passages that fit the question best."""
    told = plain_text(play.sample)
    passages = "\n\n".join(retrieve(told.text, told.query, play.limits))
    asked = f"{passages}\n\n{told.query}"
    return play.ask([{"role": "system", "content": SYSTEM}, {"role": "user", "content": asked}])


def retrieve(text: str, query: str, limits: WayLimits = PAPERS) -> list[str]:
    """The chunks that fit a query best, from high to low, until they reach as many words as are wanted."""
    pieces = chunks(text, limits.chunk)
    ranks = bm25(pieces, query)
    found: list[str] = []
    num_words = 0
    for number in sorted(range(len(pieces)), key=lambda number: (-ranks[number], number)):
        if num_words >= limits.retrieved:
            break
        found.append(pieces[number])
        num_words += len(pieces[number].split())
    return found


def chunks(text: str, size: int = PAPERS.chunk) -> list[str]:
    """Whole sentences, as many as have at most `size` words together. A longer sentence is cut."""
    found: list[list[str]] = [[]]
    for sentence in _SENTENCE_ENDS.split(text):
        words = sentence.split()
        for start in range(0, len(words), size):
            piece = words[start : start + size]
            if found[-1] and len(found[-1]) + len(piece) > size:
                found.append([])
            found[-1] += piece
    return [" ".join(words) for words in found if words]


def bm25(documents: Sequence[str], query: str) -> list[float]:
    """The rank of each document for a query, by Okapi BM25. A word counts as often as the query has it."""
    counts = [Counter(_terms(document)) for document in documents]
    sizes = [count.total() for count in counts]
    mean = sum(sizes) / len(sizes) if sizes else 0.0
    weights = _weights(counts)
    ranks = [0.0] * len(documents)
    for term in filter(weights.__contains__, _terms(query)):
        for number, count in enumerate(counts):
            if count[term]:
                length = 1 - B + B * sizes[number] / mean
                ranks[number] += weights[term] * count[term] * (K1 + 1) / (count[term] + K1 * length)
    return ranks


def _weights(counts: Sequence[Counter[str]]) -> dict[str, float]:
    """Okapi's weight of each word. One that more than half of the documents have has a quarter of the mean instead."""
    held = Counter(term for count in counts for term in count)
    found = {term: math.log(len(counts) - num + 0.5) - math.log(num + 0.5) for term, num in held.items()}
    least = EPSILON * sum(found.values()) / len(found) if found else 0.0
    return {term: least if weight < 0 else weight for term, weight in found.items()}


def _terms(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
