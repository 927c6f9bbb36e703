"""In which order things are run that are compared: drawn, so that none of them is always the first on a warm machine.

The order of a key is always the same, so that a run can be repeated. It knows nothing of what is run.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def draw_order(items: Sequence[T], *key: object) -> list[T]:
    """All of them, in the order of this key: of a repetition, and of what is run in it."""
    return random.Random(" ".join(map(str, key))).sample(items, len(items))
