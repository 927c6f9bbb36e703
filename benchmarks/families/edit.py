"""The one edit that every family is asked for: a piece in the middle of a context is folded into a marker.

    served   [ 0 ... 700 )[ 700 ... 1200 )[ 1200 ... 1800 )
    folded   [ 0 ... 700 )[marker][ 1200 ... 1800 )[ new ]

Knows tokens only.
"""

from __future__ import annotations

import random

from acmserve.bench.families.family import VOCAB_SIZE

START, END, NUM_TOKENS = 700, 1200, 1800
FOLDABLE = [[START, END]]


def _text(num_tokens: int, seed: int) -> tuple[int, ...]:
    """Random tokens, the same at each call, without the special ones."""
    draw = random.Random(seed)
    return tuple(draw.randrange(3, VOCAB_SIZE) for _ in range(num_tokens))


SERVED = _text(NUM_TOKENS, 1)
FOLDED = (*SERVED[:START], *_text(11, 2), *SERVED[END:], *_text(23, 3))
