"""Retrieval by BM25, as the Sculptor paper's baseline has it (appendix C.4). Pure but for the one request.

    text --> sentences --> chunks of 200 tokens --> ranked for the query --> the best, until 1,500 tokens --> question

Tokens are words here, since a client does not know the server's tokenizer. Chunks stand in the order of their rank,
as in the paper. The query is the question. `--retrieved` takes less, of a text that is shorter than so many tokens.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from acmserve.bench.eval.baselines.way_limits import PAPERS, WayLimits
from acmserve.bench.eval.play import Play

K1, B = 1.5, 0.75
SYSTEM = "Answer from the given passages alone. They are parts of a longer text, the most fitting first."
_SENTENCE_ENDS = re.compile(r"(?<=[.!?;\u3002\uff01\uff1f\uff1b])\s*|\n+")


def play_retrieval(play: Play) -> str:
    """One request, with the passages that fit the question best."""
    sample = play.sample
    passages = "\n\n".join(retrieve(sample.context, sample.question, play.limits))
    asked = f"{passages}\n\n{sample.question}"
    return play.ask([{"role": "system", "content": SYSTEM}, {"role": "user", "content": asked}])


def retrieve(text: str, query: str, limits: WayLimits = PAPERS) -> list[str]:
    """The chunks that fit a query best, from high to low, until there are enough words. At least one."""
    pieces = chunks(text, limits.chunk)
    ranks = bm25(pieces, query)
    found: list[str] = []
    num_words = 0
    for number in sorted(range(len(pieces)), key=lambda number: (-ranks[number], number)):
        size = len(pieces[number].split())
        if found and num_words + size > limits.retrieved:
            break
        found.append(pieces[number])
        num_words += size
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
    """The rank of each document for a query, by Okapi BM25. The weight of a word is never below zero."""
    counts = [Counter(_terms(document)) for document in documents]
    sizes = [count.total() for count in counts]
    mean = sum(sizes) / len(sizes) if sizes else 0.0
    held = Counter(term for count in counts for term in count)
    ranks = [0.0] * len(documents)
    for term in _terms(query):
        if term not in held:
            continue
        weight = math.log(1 + (len(documents) - held[term] + 0.5) / (held[term] + 0.5))
        for number, count in enumerate(counts):
            if count[term]:
                length = 1 - B + B * sizes[number] / mean
                ranks[number] += weight * count[term] * (K1 + 1) / (count[term] + K1 * length)
    return ranks


def _terms(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
