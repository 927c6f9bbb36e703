"""BM25 over chunks of a text: the retrieval that long-context papers set beside context editing.

Robertson and Walker's ranking with the usual k1 = 1.5 and b = 0.75; words are runs of letters, digits and underscores,
lower case. Equal scores go to the earlier chunk.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from acmserve.context.transcript.tokenizer import Tokenizer

_K1, _B = 1.5, 0.75
_WORD = re.compile(r"\w+")


def chunks_of(text: str, num_tokens: int, tokenizer: Tokenizer) -> list[str]:
    """The text in pieces of so many tokens; the last one may be shorter, and an empty text has none."""
    starts = [int(start) for start in tokenizer.starts(text)][::num_tokens]
    return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)][: len(starts)], strict=True)]


def rank(query: str, chunks: Sequence[str]) -> list[int]:
    """The chunks that share a word with the query, the best first."""
    words = [_words(chunk) for chunk in chunks]
    counts = [Counter(found) for found in words]
    num_with = Counter(word for count in counts for word in count)
    mean = sum(map(len, words)) / max(1, len(chunks))
    scores = []
    for number, count in enumerate(counts):
        score = 0.0
        for word in dict.fromkeys(_words(query)):
            if count[word]:
                rarity = math.log(1 + (len(chunks) - num_with[word] + 0.5) / (num_with[word] + 0.5))
                weight = 1 - _B + _B * len(words[number]) / mean
                score += rarity * count[word] * (_K1 + 1) / (count[word] + _K1 * weight)
        if score > 0:
            scores.append((-score, number))
    return [number for _, number in sorted(scores)]


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]
